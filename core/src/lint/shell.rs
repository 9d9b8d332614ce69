//! Enough of the shell's grammar to see which commands a script runs.
//!
//! It finds commands in command position, within `$(...)`, in scripts given as a string
//! to `bash -c` or `su -c`, and in here-documents; it evaluates nothing.

/// A command as it stands in a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Command {
    /// The program's name without its folder, and the arguments, quotes taken off.
    pub(super) words: Vec<String>,
    /// The line, from 1.
    pub(super) line: u32,
    /// Whether the script goes on another way when it fails (`|| true`, `|| other`), or
    /// asks for it in a condition.
    pub(super) optional: bool,
    /// What the conditions around it ask, in one text.
    pub(super) conditions: String,
}

/// Scripts within scripts beyond this are not looked into.
const MAX_DEPTH: usize = 6;

/// The commands of a script, in its order.
pub(super) fn commands(text: &str) -> Vec<Command> {
    let mut found = Vec::new();
    scan(text, 1, 0, &mut found);
    found
}

/// Words that stand before a command and are none.
const KEYWORDS: &[&str] =
    &["if", "then", "else", "elif", "do", "while", "until", "!", "time", "{", "}", "(", "fi", "done"];

/// Programs that run the command that follows them.
const WRAPPERS: &[&str] = &[
    "sudo", "exec", "nohup", "env", "nice", "ionice", "setsid", "stdbuf", "timeout", "command", "xargs", "builtin",
    "eval",
];

/// Programs that take a script as an argument.
const SHELLS: &[&str] = &["bash", "sh", "dash", "su", "runuser", "sudo", "eval", "ssh", "timeout", "nohup", "setsid"];

struct Parser<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    depth: usize,
    word: String,
    in_word: bool,
    words: Vec<String>,
    start: u32,
    condition: bool,
    /// What each open `if` and `while` asks.
    asked: Vec<String>,
    braces: usize,
    pipeline: usize,
    heredocs: Vec<(String, bool)>,
    pending: Vec<Pending>,
}

/// A pipeline that waits for what follows its `||`: that says whether it may fail.
#[derive(Clone, Copy)]
struct Pending {
    /// Its first command among those found.
    first: usize,
    /// The one after its last.
    end: usize,
    /// How deep the braces were, if a block `{ ... }` follows: any of its commands may
    /// give up.
    block: Option<usize>,
}

fn scan(text: &str, line: u32, depth: usize, found: &mut Vec<Command>) {
    if depth > MAX_DEPTH {
        return;
    }
    let mut parser = Parser {
        text,
        at: 0,
        line,
        depth,
        word: String::new(),
        in_word: false,
        words: Vec::new(),
        start: line,
        condition: false,
        asked: Vec::new(),
        braces: 0,
        pipeline: found.len(),
        heredocs: Vec::new(),
        pending: Vec::new(),
    };
    parser.run(found);
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.at += character.len_utf8();
        self.line += u32::from(character == '\n');
        Some(character)
    }

    fn run(&mut self, found: &mut Vec<Command>) {
        while let Some(character) = self.peek() {
            match character {
                '#' if !self.in_word => {
                    while self.peek().is_some_and(|next| next != '\n') {
                        self.take();
                    }
                }
                '\\' => {
                    self.take();
                    match self.take() {
                        Some('\n') | None => {}
                        Some(escaped) => self.push(escaped),
                    }
                }
                '\'' => self.single_quoted(),
                '"' => self.double_quoted(found),
                '`' => {
                    self.take();
                    let (script, line) = self.until_backquote();
                    scan(&script, line, self.depth + 1, found);
                    self.in_word = true;
                }
                '$' if self.rest().starts_with("$(") && !self.rest().starts_with("$((") => {
                    self.at += 2;
                    let (script, line) = self.until_bracket();
                    scan(&script, line, self.depth + 1, found);
                    self.in_word = true;
                }
                '<' if self.rest().starts_with("<<") && !self.rest().starts_with("<<<") => self.heredoc(),
                '\n' => {
                    self.take();
                    self.end_command("\n", found);
                    self.heredoc_bodies(found);
                }
                ';' | '&' | '|' | '(' | ')' => self.separator(character, found),
                _ if character.is_whitespace() => {
                    self.take();
                    self.end_word();
                }
                _ => {
                    self.take();
                    self.push(character);
                }
            }
        }
        self.end_command("", found);
    }

    fn push(&mut self, character: char) {
        if !self.in_word && self.words.is_empty() {
            self.start = self.line;
        }
        self.in_word = true;
        self.word.push(character);
    }

    fn end_word(&mut self) {
        if self.in_word {
            self.words.push(std::mem::take(&mut self.word));
            self.in_word = false;
        }
    }

    fn separator(&mut self, character: char, found: &mut Vec<Command>) {
        // `2>&1` and `&>file` are no separators.
        let joins = character == '&' && (self.word.ends_with('>') || self.rest().starts_with("&>"));
        if joins {
            self.take();
            self.push('&');
            return;
        }
        let operator = ["||", "&&"].into_iter().find(|operator| self.rest().starts_with(operator));
        match operator {
            Some(operator) => {
                self.at += 2;
                self.end_command(operator, found);
            }
            None => {
                self.take();
                self.end_command(if character == '|' { "|" } else { ";" }, found);
            }
        }
    }

    fn single_quoted(&mut self) {
        self.take();
        self.push_nothing();
        while let Some(character) = self.take() {
            if character == '\'' {
                return;
            }
            self.word.push(character);
        }
    }

    fn double_quoted(&mut self, found: &mut Vec<Command>) {
        self.take();
        self.push_nothing();
        while let Some(character) = self.peek() {
            if character == '$' && self.rest().starts_with("$(") && !self.rest().starts_with("$((") {
                self.at += 2;
                let (script, line) = self.until_bracket();
                scan(&script, line, self.depth + 1, found);
                continue;
            }
            self.take();
            match character {
                '"' => return,
                '\\' => {
                    let escaped = self.take();
                    self.word.extend(escaped);
                }
                _ => self.word.push(character),
            }
        }
    }

    fn push_nothing(&mut self) {
        if !self.in_word && self.words.is_empty() {
            self.start = self.line;
        }
        self.in_word = true;
    }

    fn until_backquote(&mut self) -> (String, u32) {
        let line = self.line;
        let mut script = String::new();
        while let Some(character) = self.take() {
            match character {
                '`' => break,
                '\\' => script.extend(self.take()),
                _ => script.push(character),
            }
        }
        (script, line)
    }

    /// What stands up to the bracket that closes `$(`.
    fn until_bracket(&mut self) -> (String, u32) {
        let line = self.line;
        let (mut script, mut open, mut quote) = (String::new(), 1_usize, None);
        while let Some(character) = self.take() {
            match (character, quote) {
                ('\\', None | Some('"')) => {
                    script.push(character);
                    script.extend(self.take());
                    continue;
                }
                ('\'' | '"', None) => quote = Some(character),
                (_, Some(open_quote)) if character == open_quote => quote = None,
                ('(', None) => open += 1,
                (')', None) => {
                    open -= 1;
                    if open == 0 {
                        break;
                    }
                }
                _ => {}
            }
            script.push(character);
        }
        (script, line)
    }

    fn heredoc(&mut self) {
        self.at += 2;
        let strips = self.rest().starts_with('-');
        self.at += usize::from(strips);
        while matches!(self.peek(), Some(' ' | '\t')) {
            self.take();
        }
        let mut word = String::new();
        while let Some(next) = self.peek() {
            if next.is_whitespace() || matches!(next, ';' | '&' | '|' | ')' | '<' | '>') {
                break;
            }
            self.take();
            if !matches!(next, '\'' | '"' | '\\') {
                word.push(next);
            }
        }
        if !word.is_empty() {
            self.heredocs.push((word, strips));
        }
    }

    /// A here-document is often a script that is started later: it is looked into.
    fn heredoc_bodies(&mut self, found: &mut Vec<Command>) {
        for (word, strips) in std::mem::take(&mut self.heredocs) {
            let first = self.line;
            let mut body = String::new();
            while self.at < self.text.len() {
                let line = self.rest().split('\n').next().unwrap_or_default().to_owned();
                self.at = (self.at + line.len() + 1).min(self.text.len());
                self.line += 1;
                let end = if strips { line.trim_start_matches('\t') } else { line.as_str() };
                if end.trim_end() == word {
                    break;
                }
                body.push_str(&line);
                body.push('\n');
            }
            scan(&body, first, self.depth + 1, found);
        }
    }

    /// Decides on a pipeline before a `||` by what follows: a command that does not give
    /// up, or a block without one that does.
    fn settle_pending(&mut self, program: Option<&str>, opens: bool, closes: bool, found: &mut [Command]) {
        let gives_up = matches!(program, Some("exit" | "return" | "false" | "die" | "fail"));
        let Some(last) = self.pending.last_mut() else { return };
        if last.block.is_none() && opens {
            last.block = Some(self.braces);
        }
        if gives_up {
            self.pending.pop();
        }
        let braces = self.braces;
        while let Some(last) = self.pending.last()
            && (last.block.is_none() || (closes && last.block.is_some_and(|block| braces < block)))
        {
            for command in found.get_mut(last.first..last.end).unwrap_or_default() {
                command.optional = true;
            }
            self.pending.pop();
        }
    }

    fn end_command(&mut self, operator: &str, found: &mut Vec<Command>) {
        self.end_word();
        let mut words = std::mem::take(&mut self.words);
        let start = self.start;
        self.follow_conditions(&words);
        let opens = words.first().is_some_and(|word| word == "{");
        let closes = words.iter().any(|word| word == "}");
        self.braces += usize::from(opens || words.ends_with(&["{".to_owned()]));
        self.braces = self.braces.saturating_sub(usize::from(closes));
        let nested = strip_prefixes(&mut words);
        if opens || closes || !words.is_empty() {
            self.settle_pending(words.first().map(String::as_str), opens, closes, found);
        }
        for script in nested {
            scan(&script, start, self.depth + 1, found);
        }
        if !words.is_empty() {
            let conditions = self.asked.join(" ");
            found.push(Command { words, line: start, optional: self.condition, conditions });
        }
        match operator {
            "||" if self.pipeline < found.len() => {
                self.pending.push(Pending { first: self.pipeline, end: found.len(), block: None });
                self.pipeline = found.len();
            }
            "|" => {}
            _ => self.pipeline = found.len(),
        }
    }

    /// Keeps what the open conditions ask.
    fn follow_conditions(&mut self, words: &[String]) {
        let opens = words.iter().any(|word| matches!(word.as_str(), "if" | "while" | "until"));
        if opens {
            self.asked.push(String::new());
        }
        let asks = opens || words.iter().any(|word| word == "elif");
        let answered = words.iter().any(|word| matches!(word.as_str(), "then" | "do"));
        self.condition = (self.condition || asks) && !answered;
        if self.condition
            && let Some(asked) = self.asked.last_mut()
        {
            asked.push_str(&words.join(" "));
            asked.push(' ');
        }
        if words.iter().any(|word| matches!(word.as_str(), "fi" | "done")) {
            self.asked.pop();
        }
    }
}

/// Takes off what stands before a command (keywords, assignments, wrappers and their
/// options) and gives the scripts that its arguments hold.
fn strip_prefixes(words: &mut Vec<String>) -> Vec<String> {
    let mut nested = Vec::new();
    let mut at = 0;
    let mut wrapper: Option<String> = None;
    while let Some(word) = words.get(at) {
        let name = base_name(word);
        let assigns = word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        });
        if KEYWORDS.contains(&word.as_str()) || assigns {
            at += 1;
        } else if WRAPPERS.contains(&name) {
            if name == "command"
                && words.get(at + 1).is_some_and(|next| next.starts_with("-v") || next.starts_with("-V"))
            {
                words.clear();
                return nested;
            }
            wrapper = Some(name.to_owned());
            at += 1;
        } else if wrapper.is_some() && word.starts_with('-') {
            // `sudo -u ga`, `timeout -k 5`: an option with a value of its own.
            at += if matches!(word.as_str(), "-u" | "-g" | "-k" | "-s" | "-n" | "-I") { 2 } else { 1 };
        } else if wrapper.as_deref() == Some("timeout") && word.starts_with(|first: char| first.is_ascii_digit()) {
            at += 1;
        } else {
            break;
        }
    }
    let shell = words.get(at).is_some_and(|word| SHELLS.contains(&base_name(word)))
        || wrapper.as_deref().is_some_and(|name| SHELLS.contains(&name));
    if shell {
        nested.extend(words.iter().skip(at).filter(|word| word.contains(char::is_whitespace)).cloned());
    }
    words.drain(..at.min(words.len()));
    if let Some(first) = words.first_mut() {
        *first = base_name(first).to_owned();
    }
    nested
}

fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        commands(text).into_iter().map(|command| command.words.join(" ")).collect()
    }

    #[test]
    fn commands_are_found_where_the_shell_runs_them() {
        let cases: &[(&str, &[&str])] = &[
            ("# docker run\necho 'docker run' \"snap install\"", &["echo docker run snap install"]),
            ("A=1 sudo -E /usr/bin/docker run x", &["docker run x"]),
            ("if ! systemctl is-active x; then echo no; fi", &["systemctl is-active x", "echo no"]),
            ("x=$(docker ps | wc -l)", &["docker ps", "wc -l"]),
            ("echo \"`docker ps`\"; y", &["echo `docker ps`", "y"]),
            ("su - ga -c \"docker run y && z\"", &["docker run y", "z", "su - ga -c docker run y && z"]),
            ("timeout -k 5 30 docker pull x || true", &["docker pull x", "true"]),
            ("command -v docker && a", &["a"]),
            ("a 2>&1 | b &> c & d", &["a 2>&1", "b &> c", "d"]),
            (
                "cat > f <<'EOF'\n#!/bin/bash\ndocker up \"unclosed\nEOF\nlast",
                &["cat > f", "docker up unclosed\n", "last"],
            ),
            ("for i in 1 2; do snap install x; done", &["for i in 1 2", "snap install x"]),
            ("a \\\n  b", &["a b"]),
        ];
        for (text, expected) in cases {
            assert_eq!(names(text), *expected, "{text}");
        }
    }

    #[test]
    fn a_command_that_may_fail_is_optional() {
        let optional = |text: &str| commands(text)[0].optional;
        assert!(optional("snap install x || true"));
        assert!(optional("snap install x || apt-get install x"));
        assert!(optional("if modprobe fuse; then a; fi"));
        assert!(!optional("snap install x || exit 1"));
        assert!(!optional("snap install x || { echo failed; exit 1; }"));
        assert!(optional("snap install x || {\n  echo failed\n  apt-get install x || { echo; exit 1; }\n}"));
        assert!(optional("qemu --version | head -1 || echo none"));
        assert!(!optional("snap install x && y || z"));
        assert!(!optional("snap install x\n"));
    }

    #[test]
    fn a_command_knows_what_was_asked_around_it() {
        let text = "if systemctl is-active snapd; then\n  snap install x\nelse\n  other\nfi\nlast";
        let found: Vec<_> =
            commands(text).into_iter().map(|command| (command.words[0].clone(), command.conditions)).collect();
        assert!(found[1].1.contains("snapd"), "{found:?}");
        assert_eq!(found.last().map(|(word, asked)| (word.as_str(), asked.as_str())), Some(("last", "")));
    }

    #[test]
    fn lines_are_counted_through_here_documents() {
        let text = "a\ncat <<X\nb\nX\nc\n";
        let lines: Vec<_> =
            commands(text).into_iter().map(|command| (command.words[0].clone(), command.line)).collect();
        assert_eq!(lines, [("a".to_owned(), 1), ("cat".to_owned(), 2), ("b".to_owned(), 3), ("c".to_owned(), 5)]);
    }

    #[test]
    fn scripts_within_scripts_end_somewhere() {
        let text = format!("{}x{}", "$(".repeat(50_000), ")".repeat(50_000));
        assert!(commands(&text).len() < 100);
    }
}
