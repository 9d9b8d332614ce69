"""A terminal with a title, a body, a line of keys and a line that says what was done."""

import curses

ENTER = ("\n", "\r", curses.KEY_ENTER)
ESCAPE, SAVE = "\x1b", "\x13"


class Screen:
    def __init__(self, window, name):
        self.window, self.name, self.message = window, name, ""
        curses.use_default_colors()
        curses.raw()
        curses.curs_set(0)
        curses.set_escdelay(25)
        window.keypad(True)

    def show(self, title, lines, keys):
        """Draws everything, and waits for a key: a character, or one of curses' numbers."""
        self.window.erase()
        height, width = self.window.getmaxyx()
        self.put(0, f" {self.name} - {title}".ljust(width - 1), curses.A_REVERSE)
        for row, line in enumerate(lines[: height - 5], 2):
            self.put(row, line, curses.A_BOLD if line.startswith(">") else 0)
        self.put(height - 2, f" {keys}", curses.A_DIM)
        self.put(height - 1, f" {self.message or 'Ready.'}", curses.A_BOLD)
        self.window.refresh()
        while True:
            try:
                return self.window.get_wch()
            except curses.error:
                continue

    def put(self, row, text, how):
        try:
            self.window.addnstr(row, 0, text, self.window.getmaxyx()[1] - 1, how)
        except curses.error:
            pass  # a window too small to show it

    def choose(self, title, heading, rows, keys, at=0, others=""):
        """A list; the key that ended it, and the row that it was on."""
        while True:
            at = max(0, min(at, len(rows) - 1))
            lines = [heading] + [f"{'>' if row == at else ' '} {text}" for row, text in enumerate(rows)]
            key = self.show(title, lines, keys)
            if key == curses.KEY_DOWN:
                at += 1
            elif key == curses.KEY_UP:
                at -= 1
            elif key in ENTER or key == ESCAPE or (isinstance(key, str) and key in others):
                return key, at

    def fill(self, title, fields, keys="Tab next field   < > choose   Ctrl+S save   Esc leave it"):
        """A form: `fields` are [label, value] or [label, value, choices]; whether it is to be saved."""
        at = 0
        while True:
            lines = []
            for row, (label, value, *choices) in enumerate(fields):
                value = f"< {value} >" if choices else value + ("_" if row == at else "")
                lines.append(f"{'>' if row == at else ' '} {label:<10}{value}")
            key = self.show(title, lines, keys)
            label, value, *choices = fields[at]
            if key in (ESCAPE, SAVE):
                return key == SAVE
            if key in ("\t", curses.KEY_DOWN) or key in ENTER:
                at = (at + 1) % len(fields)
            elif key in (curses.KEY_BTAB, curses.KEY_UP):
                at = (at - 1) % len(fields)
            elif choices:
                step = {curses.KEY_RIGHT: 1, curses.KEY_LEFT: -1}.get(key, 0)
                fields[at][1] = choices[0][(choices[0].index(value) + step) % len(choices[0])]
            elif key in (curses.KEY_BACKSPACE, "\x7f", "\b"):
                fields[at][1] = value[:-1]
            elif isinstance(key, str) and key.isprintable():
                fields[at][1] = value + key


def run(name, program):
    """Runs a program on the whole terminal, until its window is closed."""
    curses.wrapper(lambda window: program(Screen(window, name)))
