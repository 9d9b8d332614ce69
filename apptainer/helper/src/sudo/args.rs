//! The command lines of `sudo` and `pkexec`, taken apart: pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// A command is to be run.
    Run(Invocation),
    /// Nothing but this text is to be said (`-v`, `-k`, `-l`, `-V`).
    Nothing(&'static str),
}

/// A command to run as another account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Invocation {
    /// The account, by name or `#UID`.
    pub(crate) user: String,
    /// The command; empty for the account's shell alone.
    pub(crate) command: Vec<String>,
    /// Whether the command goes through the account's shell, and whether as a login.
    pub(crate) shell: Shell,
    /// Which of the caller's variables are kept.
    pub(crate) keep: Keep,
    /// Whether HOME is the account's even where the caller's variables are kept.
    pub(crate) set_home: bool,
    /// Variables set on the command line.
    pub(crate) assign: BTreeMap<String, String>,
    /// The folder to run in, if it is not the caller's.
    pub(crate) chdir: Option<String>,
    /// Whether the caller does not wait for the command.
    pub(crate) background: bool,
}

/// How a command meets the account's shell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Shell {
    /// Not at all.
    #[default]
    No,
    /// `-s`.
    Plain,
    /// `-i`: a login, in the account's home.
    Login,
}

/// Which of the caller's variables a command keeps, beside the few that always are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Keep {
    /// None.
    #[default]
    None,
    /// These.
    These(Vec<String>),
    /// All.
    All,
}

/// Options that take a value, as letter and long name; those without a meaning here are
/// read past.
const VALUED: [(char, &str); 12] = [
    ('u', "user"),
    ('g', "group"),
    ('h', "host"),
    ('p', "prompt"),
    ('C', "close-from"),
    ('D', "chdir"),
    ('R', "chroot"),
    ('r', "role"),
    ('t', "type"),
    ('T', "command-timeout"),
    ('U', "other-user"),
    ('a', "auth-type"),
];

/// Options without a value.
const PLAIN: [(char, &str); 16] = [
    ('A', "askpass"),
    ('B', "bell"),
    ('E', "preserve-env"),
    ('H', "set-home"),
    ('K', "remove-timestamp"),
    ('N', "no-update"),
    ('P', "preserve-groups"),
    ('S', "stdin"),
    ('V', "version"),
    ('b', "background"),
    ('i', "login"),
    ('k', "reset-timestamp"),
    ('l', "list"),
    ('n', "non-interactive"),
    ('s', "shell"),
    ('v', "validate"),
];

#[derive(Default)]
struct Options {
    invocation: Invocation,
    list: bool,
    nothing: bool,
    version: bool,
}

impl Options {
    fn plain(&mut self, letter: char) {
        let invocation = &mut self.invocation;
        match letter {
            'E' => invocation.keep = Keep::All,
            'H' => invocation.set_home = true,
            'b' => invocation.background = true,
            'i' => invocation.shell = Shell::Login,
            's' => invocation.shell = Shell::Plain,
            'l' => self.list = true,
            'V' => self.version = true,
            'v' | 'k' | 'K' => self.nothing = true,
            // Nobody is ever asked for a password here.
            _ => {}
        }
    }

    fn valued(&mut self, letter: char, value: &str) {
        match letter {
            'u' => self.invocation.user = value.to_owned(),
            'D' => self.invocation.chdir = Some(value.to_owned()),
            _ => {}
        }
    }
}

/// Takes `sudo`'s arguments apart.
pub(crate) fn sudo(words: &[String]) -> Result<Parsed, String> {
    let mut options = Options::default();
    options.invocation.user = "root".to_owned();
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next_if(|word| word.starts_with('-') && word.len() > 1) {
        if word == "--" {
            break;
        }
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            if let (Some(letter), value) = (find(&VALUED, name), value) {
                let value = match value {
                    Some(value) => value,
                    None => rest.next().ok_or_else(|| format!("option `--{name}` needs a value"))?,
                };
                options.valued(letter, value);
            } else if name == "preserve-env"
                && let Some(list) = value
            {
                let names = list.split(',').map(str::to_owned);
                match &mut options.invocation.keep {
                    Keep::All => {}
                    Keep::These(kept) => kept.extend(names),
                    keep @ Keep::None => *keep = Keep::These(names.collect()),
                }
            } else if let Some(letter) = find(&PLAIN, name).filter(|_| value.is_none()) {
                options.plain(letter);
            } else if name == "help" {
                options.version = true;
            } else {
                return Err(format!("unknown option `{word}`"));
            }
            continue;
        }
        let mut letters = word.chars().skip(1);
        while let Some(letter) = letters.next() {
            if VALUED.iter().any(|(known, _)| *known == letter) {
                let glued: String = letters.by_ref().collect();
                let value = if glued.is_empty() {
                    rest.next().ok_or_else(|| format!("option `-{letter}` needs a value"))?.clone()
                } else {
                    glued
                };
                options.valued(letter, &value);
            } else if PLAIN.iter().any(|(known, _)| *known == letter) {
                options.plain(letter);
            } else {
                return Err(format!("unknown option `-{letter}`"));
            }
        }
    }
    let Options { mut invocation, list, nothing, version } = options;
    while let Some((name, value)) = rest.peek().and_then(|word| assignment(word)) {
        invocation.assign.insert(name.to_owned(), value.to_owned());
        rest.next();
    }
    invocation.command = rest.cloned().collect();
    if version {
        return Ok(Parsed::Nothing("sudo of a Longhaul sandbox\n"));
    }
    if list && invocation.command.is_empty() {
        return Ok(Parsed::Nothing("    (ALL : ALL) NOPASSWD: ALL\n"));
    }
    if list || (nothing && invocation.command.is_empty()) {
        return Ok(Parsed::Nothing(""));
    }
    if invocation.command.is_empty() && invocation.shell == Shell::No {
        return Err("a command is expected".to_owned());
    }
    Ok(Parsed::Run(invocation))
}

/// Takes `pkexec`'s arguments apart.
pub(crate) fn pkexec(words: &[String]) -> Result<Parsed, String> {
    let mut invocation = Invocation { user: "root".to_owned(), ..Invocation::default() };
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next_if(|word| word.starts_with("--")) {
        match word.as_str() {
            "--" => break,
            "--version" => return Ok(Parsed::Nothing("pkexec of a Longhaul sandbox\n")),
            "--user" => invocation.user = rest.next().ok_or("option `--user` needs a value")?.clone(),
            "--disable-internal-agent" | "--keep-cwd" => {}
            other => return Err(format!("unknown option `{other}`")),
        }
    }
    invocation.command = rest.cloned().collect();
    if invocation.command.is_empty() {
        invocation.shell = Shell::Plain;
    }
    Ok(Parsed::Run(invocation))
}

fn find(options: &[(char, &str)], name: &str) -> Option<char> {
    options.iter().find(|(_, known)| *known == name).map(|(letter, _)| *letter)
}

/// A `NAME=value` before the command.
fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let mut letters = name.chars();
    let first = letters.next().is_some_and(|letter| letter.is_ascii_alphabetic() || letter == '_');
    (first && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_')).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Parsed, String> {
        sudo(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    fn run(line: &str) -> Invocation {
        match parsed(line) {
            Ok(Parsed::Run(invocation)) => invocation,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_benchmarks_ways_to_call_sudo_are_understood() {
        let cases = [
            ("apt-get install -y x", "root", "apt-get install -y x"),
            ("-u ga mkdir -p /home/ga/x", "ga", "mkdir -p /home/ga/x"),
            ("-uga -H id -u", "ga", "id -u"),
            ("-Hu ga id", "ga", "id"),
            ("--user=ga -- -odd", "ga", "-odd"),
            ("--user ga id", "ga", "id"),
            ("-n -S -p prompt -- id", "root", "id"),
            ("-g video -C 3 id", "root", "id"),
        ];
        for (line, user, command) in cases {
            let invocation = run(line);
            assert_eq!(invocation.user, user, "{line}");
            assert_eq!(invocation.command.join(" "), command, "{line}");
        }
    }

    #[test]
    fn variables_and_shells_are_told_apart() {
        let invocation = run("-u ga DISPLAY=:1 A_b=x=y env");
        assert_eq!(invocation.assign.get("A_b").map(String::as_str), Some("x=y"));
        assert_eq!(invocation.command, ["env"]);
        assert_eq!(run("-E -H x").keep, Keep::All);
        assert!(run("-E -H x").set_home);
        assert_eq!(run("--preserve-env=A,B x").keep, Keep::These(vec!["A".into(), "B".into()]));
        assert_eq!(run("-i").shell, Shell::Login);
        assert_eq!(run("-iu ga").user, "ga");
        assert_eq!(run("-s echo hi").shell, Shell::Plain);
        assert!(run("-b x").background);
        assert_eq!(run("-D /tmp x").chdir.as_deref(), Some("/tmp"));
        assert_eq!(run("./a=b").command, ["./a=b"]);
    }

    #[test]
    fn what_runs_nothing_says_so() {
        for line in ["-v", "-k", "-n -v", "-K"] {
            assert_eq!(parsed(line), Ok(Parsed::Nothing("")), "{line}");
        }
        assert!(matches!(parsed("-l"), Ok(Parsed::Nothing(text)) if text.contains("NOPASSWD")));
        assert_eq!(run("-k id").command, ["id"]);
        for line in ["", "-u", "-y id", "--unheard-of id"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn pkexec_is_understood() {
        let words = ["--user", "ga", "id", "-u"].map(str::to_owned);
        let Ok(Parsed::Run(invocation)) = pkexec(&words) else { panic!("no command") };
        assert_eq!((invocation.user.as_str(), invocation.command.len()), ("ga", 2));
        assert!(pkexec(&["--nonsense".to_owned()]).is_err());
    }
}
