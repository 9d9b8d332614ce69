# The house's programs, and what is read of them; to be sourced by bash, after desktop.sh.
#
# Nothing here says what a task checks: the hooks of its rounds do, and an agent does not see them.

STORE=/var/lib/desk/desk.db
desk_title='Front Desk'
board_title="Caretaker's Board"

# title_of PROGRAM: the title of its window.
title_of() {
    local name=$1_title
    printf '%s\n' "${!name}"
}

# fresh_store: the house's requests as they were this morning, and no operation yet.
fresh_store() {
    rm -f "$STORE"*
    as_ga "sqlite3 $STORE" </opt/desk/morning.sql
}

# open_program PROGRAM FONT_SIZE: `desk` or `board` in a terminal of its own.
open_program() {
    local title
    title=$(title_of "$1")
    open_window "$title" "xterm -T \"$title\" -fa 'DejaVu Sans Mono' -fs $2 -bg '#fdf6e3' -fg '#22313a' -b 8 \
        -e env LC_ALL=C.UTF-8 tmux -u -L $1 -f /opt/desk/tmux.conf new-session -s $1 python3 /opt/desk/$1.py"
}

# open_side_by_side: both, the front desk on the left and with the keyboard.
open_side_by_side() {
    open_program board 9
    place_window "$board_title" 644 0 630 690
    open_program desk 9
    place_window "$desk_title" 2 0 630 690
    wmctrl -a "$desk_title"
}

# close_program PROGRAM: as its window's close button does; waits until it is gone. One that is
# closed already is no failure: an agent may have done that.
close_program() {
    local title try
    title=$(title_of "$1")
    wmctrl -F -c "$title" || true
    for try in $(seq 1 100); do
        if ! pgrep -f "python3 /opt/desk/$1.py" >/dev/null && ! wmctrl -l | grep -qF -- "$title"; then return 0; fi
        sleep 0.1
    done
    echo "'$title' is still open after $try looks" >&2
    return 1
}

# shown PROGRAM: what its terminal shows now, as JSON. `rows` are the lines of its list by the number
# that they begin with; the last line says what the program has just done.
shown() {
    local text=
    if ! text=$(as_ga "tmux -u -L $1 capture-pane -p -t $1" 2>/dev/null); then
        printf '{"open": false, "text": "", "rows": {}}\n'
        return 0
    fi
    jq -Rsc 'sub("\\s+$"; "") | split("\n") | map(sub("\\s+$"; "")) | {
        open: true,
        title: (.[0] // "" | ltrimstr(" ")),
        message: (.[-1] // "" | ltrimstr(" ")),
        rows: (map(capture("^[ >]*(?<id>[0-9]+)  +(?<line>.*)$")? | {(.id): .line}) | add // {}),
        text: join("\n")
    }' <<<"$text"
}

# stored SQL: what the store answers, as a list; empty where there is none that can be read.
stored() { { sqlite3 -readonly -json "$STORE" "$1" 2>/dev/null || true; } | jq -sc '.[0] // []'; }

# records NUMBER: a stored request under its number, read past the programs; nothing where there is none.
records() { stored "select * from requests where id = $1" | jq -c 'map({(.id | tostring): .}) | add // {}'; }

# other_records NUMBER: all the others, in the order of their numbers.
other_records() { stored "select * from requests where id <> $1 order by id"; }

# operations: what was done since the morning, by its kind, each save one operation.
operations() {
    stored 'select * from operations order by number' | jq -c 'map(.fields |= fromjson) |
        {added: map(select(.kind == "add")), changed: map(select(.kind == "change"))}'
}
