//! Programs of the examples that resumption is measured and tried with, and what is done in them: by a seed, at random,
//! and yet as people work: text is typed, cells are filled, lines are drawn, and it is saved.
//!
//! Nothing here shows a time of day: what a replay cannot do is told in `docs/resuming.md`, and is no
//! part of what is measured.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

/// A program of an env of the examples, as a task of the measurement's own.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// What it is called in tables.
    pub name: &'static str,
    /// The env's folder.
    pub env: &'static str,
    /// The task's folder.
    pub task: &'static str,
    /// A file of another task of the env that it works on.
    file: Option<&'static str>,
    /// Makes the files that are worked on.
    prepare: &'static str,
    /// Opens the program over them: at the start, and again over those of a snapshot.
    open: &'static str,
    /// Prints the digests of all that was saved, as `sha256sum` does.
    digests: &'static str,
    actions: fn(&mut Chance) -> Vec<Value>,
    /// What is done at last, so that all of it is saved.
    save: fn() -> Vec<Value>,
}

/// The programs, each with its own env or terminal.
pub const PROGRAMS: [Program; 5] = [
    Program {
        name: "Mousepad",
        env: "mousepad_env",
        task: "quality",
        file: None,
        prepare: "install -o ga -g ga -m 644 /home/ga/Documents/papers/notice.txt /home/ga/Documents/notice.txt",
        open: r#"open_window notice.txt "dbus-run-session -- mousepad /home/ga/Documents/notice.txt"
fill_screen notice.txt"#,
        digests: "sha256sum Documents/*.txt",
        actions: editor,
        save: || vec![keys(&["ctrl", "s"]), wait()],
    },
    Program {
        name: "Gnumeric",
        env: "gnumeric_env",
        task: "quality",
        file: None,
        prepare: "install -o ga -g ga -m 644 /home/ga/Documents/books/expenses.gnumeric /home/ga/Documents/expenses.gnumeric",
        open: r#"open_window expenses.gnumeric "gnumeric --no-splash /home/ga/Documents/expenses.gnumeric"
fill_screen expenses.gnumeric"#,
        // The file itself holds the time at which it was written.
        digests: r#"for book in Documents/*.gnumeric; do
    printf '%s  %s\n' "$(zcat "$book" | sed -E 's#<(dc:date|meta:creation-date)>[^<]*<##g' | sha256sum | cut -d' ' -f1)" "$book"
done"#,
        actions: sheet,
        save: || vec![keys(&["Escape"]), keys(&["ctrl", "s"]), wait()],
    },
    Program {
        name: "mtPaint",
        env: "mtpaint_env",
        task: "quality",
        file: Some("flip_sign/sign.png"),
        prepare: "install -o ga -g ga -m 644 /workspace/tasks/quality/sign.png /home/ga/Pictures/sign.png",
        open: r#"open_window sign.png "mtpaint /home/ga/Pictures/sign.png"
wmctrl -F -c "Settings Toolbar"
fill_screen sign.png"#,
        digests: "sha256sum Pictures/*.png",
        actions: picture,
        save: || vec![keys(&["ctrl", "s"]), wait()],
    },
    Program {
        name: "Front Desk",
        env: "desk_env",
        task: "quality",
        file: None,
        prepare: ". /workspace/scripts/programs.sh\nfresh_store",
        open: ". /workspace/scripts/programs.sh\nopen_program desk 13\nfill_screen \"$desk_title\"",
        digests: "printf '%s  store\\n' \"$(sqlite3 /var/lib/desk/desk.db .dump | sha256sum | cut -d' ' -f1)\"",
        actions: desk,
        save: || vec![keys(&["Escape"]), keys(&["Escape"])],
    },
    Program {
        name: "a shell in xterm",
        env: "desk_env",
        task: "quality_shell",
        file: None,
        prepare: r#"install -d -o ga -g ga /home/ga/work
printf "PS1='work> '\ncd ~/work\nunset HISTFILE\n" >/home/ga/.quality_bashrc"#,
        // The pointer stays where something is typed.
        open: r#"open_window Shell "xterm -xrm 'XTerm*pointerMode: 0' -T Shell -fa 'DejaVu Sans Mono' -fs 12 -e bash --rcfile /home/ga/.quality_bashrc"
fill_screen Shell"#,
        digests: "(cd work && find . -type f -print0 | sort -z | xargs -0r sha256sum)",
        actions: shell,
        save: || vec![keys(&["ctrl", "c"])],
    },
];

impl Program {
    /// `env/task`.
    #[must_use]
    pub fn name_of_task(&self) -> String {
        format!("{}/{}", self.env, self.task)
    }

    /// Writes the task into a copy of the examples.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn write(&self, benchmark: &Path) -> Result<()> {
        let tasks = benchmark.join("environments").join(self.env).join("tasks");
        let folder = tasks.join(self.task);
        fs::create_dir_all(&folder)?;
        if let Some(file) = self.file.map(|file| tasks.join(file)) {
            fs::copy(&file, folder.join(file.file_name().unwrap_or_default()))?;
        }
        let inside = format!("/workspace/tasks/{}", self.task);
        let spec = json!({
            "id": format!("{}@1", self.task),
            "version": "1",
            "env_id": format!("longhaul.{}@1", self.env),
            "description": format!("Work in {}.", self.name),
            "difficulty": "easy",
            "init": {"timeout_sec": 14_400, "max_steps": 5000, "reward_type": "sparse"},
            "hooks": {
                "pre_task": format!("{inside}/setup_task.sh"),
                "post_task": format!("{inside}/export_result.sh"),
                "pre_task_timeout": 120,
            },
            "success": {"mode": "program", "spec": {"program": format!("verifier.py::verify_{}", self.task)}},
            "metadata": {},
            "post_task_settle_sec": 0,
            "longhaul": {"restart": format!("{inside}/open.sh")},
        });
        let begin = "#!/bin/bash\nset -euo pipefail\n. /workspace/scripts/desktop.sh\n";
        let export = format!("{begin}cd /home/ga\nsaved() {{\n{}\n}}\n{EXPORT}", self.digests);
        let verifier = VERIFIER.replace("TASK", self.task);
        let files = [
            ("task.json", format!("{spec:#}\n"), false),
            ("setup_task.sh", format!("{begin}{}\n{}\n", self.prepare, self.open), true),
            ("open.sh", format!("{begin}{}\n", self.open), true),
            ("export_result.sh", export, true),
            ("verifier.py", verifier, false),
        ];
        for (name, text, runs) in files {
            use std::os::unix::fs::PermissionsExt as _;
            let file = folder.join(name);
            fs::write(&file, text)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(if runs { 0o755 } else { 0o644 }))?;
        }
        Ok(())
    }

    /// The lines of a script of so many steps.
    #[must_use]
    pub fn script(&self, seed: u64, steps: u32) -> String {
        let mut chance = Chance(seed ^ 0x5bd1_e995);
        let mut lines = String::new();
        let mut left = Vec::new();
        for _ in 1..steps {
            while left.is_empty() {
                left = (self.actions)(&mut chance);
                left.reverse();
            }
            let step: Value = left.pop().unwrap_or_else(wait);
            lines.extend([step.to_string(), "\n".to_owned()]);
        }
        lines.extend([Value::from((self.save)()).to_string(), "\n".to_owned()]);
        lines
    }
}

const EXPORT: &str = r#"files='{' separator=''
while read -r digest path; do
    files+="$separator\"$path\": \"$digest\""
    separator=', '
done < <(saved)
report files "$files}"
"#;

const VERIFIER: &str = r#""""What was saved, by its digests."""

import json
import tempfile
from pathlib import Path


def verify_TASK(traj, env_info, task_info):
    target = Path(tempfile.mkdtemp()) / "result.json"
    env_info["copy_from_env"]("/tmp/task_result.json", str(target))
    files = json.loads(target.read_text(encoding="utf-8"))["files"]
    return {"passed": bool(files), "score": 100 if files else 0, "feedback": json.dumps(files, sort_keys=True)}
"#;

/// Numbers that are the same for the same seed, on every machine.
#[derive(Debug)]
pub struct Chance(pub u64);

impl Chance {
    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    fn within(&mut self, from: u64, end: u64) -> u64 {
        from + self.below(end - from)
    }

    fn of<T: Copy>(&mut self, some: &[T]) -> T {
        let index = usize::try_from(self.below(some.len() as u64)).unwrap_or_default();
        some[index]
    }

    fn phrase(&mut self) -> String {
        let words = self.within(1, 4);
        (0..words).map(|_| self.of(&WORDS)).collect::<Vec<_>>().join(" ")
    }
}

const WORDS: [&str; 16] = [
    "oak", "river", "lamp", "Monday", "seven", "Grüße", "ladder", "invoice", "north", "quiet", "café", "window", "42",
    "garden", "paper", "bell",
];

fn keys(chord: &[&str]) -> Value {
    json!({"keyboard": {"keys": chord}})
}

fn text(text: &str) -> Value {
    json!({"keyboard": {"text": text}})
}

fn wait() -> Value {
    json!({"action": "wait", "time": 1})
}

/// Some steps, each of one action or of several.
fn editor(chance: &mut Chance) -> Vec<Value> {
    match chance.below(20) {
        0..=7 => vec![text(&format!("{} ", chance.phrase()))],
        8..=9 => vec![keys(&["Return"])],
        10..=12 => {
            let (x, y) = (chance.within(60, 700), chance.within(100, 640));
            vec![json!({"mouse": {"left_click": [x, y]}})]
        }
        13..=14 => {
            let chords: [&[&str]; 6] = [&["Home"], &["End"], &["Up"], &["Down"], &["ctrl", "Home"], &["ctrl", "End"]];
            vec![keys(chance.of(&chords))]
        }
        15 => vec![Value::from(vec![keys(&["BackSpace"]); 3])],
        // A word is marked, and written over.
        16..=17 => vec![keys(&["ctrl", "shift", "Left"]), text(chance.of(&WORDS))],
        18 => vec![json!([keys(&["ctrl", "s"]), wait()])],
        _ => vec![keys(&["ctrl", "z"])],
    }
}

fn sheet(chance: &mut Chance) -> Vec<Value> {
    let cell = |chance: &mut Chance| {
        let (x, y) = (60 + 82 * chance.below(10) + 30, 238 + 18 * chance.below(24));
        json!({"mouse": {"left_click": [x, y]}})
    };
    let leave = |chance: &mut Chance| keys(&[chance.of(&["Return", "Tab"])]);
    match chance.below(12) {
        0..=3 => {
            let number = format!("{}.{}", chance.below(1000), chance.within(10, 100));
            vec![cell(chance), json!([text(&number), leave(chance)])]
        }
        4..=6 => vec![cell(chance), text(&chance.phrase()), leave(chance)],
        7 => {
            let (from, to) = (chance.within(2, 8), chance.within(8, 14));
            vec![cell(chance), json!([text(&format!("=sum(C{from}:C{to})")), leave(chance)])]
        }
        8 => vec![cell(chance), keys(&["Delete"])],
        9 => vec![keys(&[chance.of(&["Up", "Down", "Left", "Right"])])],
        10 => vec![keys(&["ctrl", "z"])],
        _ => vec![json!([keys(&["ctrl", "s"]), wait()])],
    }
}

fn picture(chance: &mut Chance) -> Vec<Value> {
    let point = |chance: &mut Chance| json!([chance.within(520, 840), chance.within(320, 520)]);
    match chance.below(10) {
        0..=4 => {
            let (from, to) = (point(chance), point(chance));
            vec![json!({"mouse": {"left_click_drag": [from, to]}})]
        }
        5 => vec![json!({"mouse": {"left_click": point(chance)}})],
        // Another color of the palette.
        6..=7 => vec![json!({"mouse": {"left_click": [38, 118 + 10 * chance.below(20)]}})],
        8 => vec![keys(&["ctrl", "z"])],
        _ => vec![json!([keys(&["ctrl", "s"]), wait()])],
    }
}

/// From the list of requests, or the welcome; it ends at the list.
fn desk(chance: &mut Chance) -> Vec<Value> {
    let times = |chance: &mut Chance, key: &str| {
        let count = usize::try_from(chance.within(1, 4)).unwrap_or(1);
        Value::from(vec![keys(&[key]); count])
    };
    match chance.below(3) {
        0 => vec![
            keys(&["Return"]),
            text("n"),
            json!([text(&chance.phrase()), keys(&["Tab"])]),
            json!([text(chance.of(&["Hall", "Library", "Cinema"])), keys(&["Tab"])]),
            times(chance, "Right"),
            keys(&["ctrl", "s"]),
            keys(&["Escape"]),
            keys(&["Escape"]),
        ],
        1 => vec![
            keys(&["Return"]),
            times(chance, "Down"),
            keys(&["Return"]),
            text("c"),
            json!([keys(&["Tab"]), keys(&["Tab"])]),
            times(chance, "Right"),
            keys(&["Tab"]),
            times(chance, "Right"),
            keys(&["ctrl", "s"]),
            keys(&["Escape"]),
            keys(&["Escape"]),
        ],
        _ => vec![keys(&["Return"]), times(chance, "Down"), keys(&["Return"]), keys(&["Escape"]), keys(&["Escape"])],
    }
}

fn shell(chance: &mut Chance) -> Vec<Value> {
    let file = format!("notes-{}.txt", chance.below(4));
    let line = match chance.below(10) {
        0..=4 => format!("echo {} >> {file}", chance.phrase()),
        5 => "wc -w * 2>/dev/null".to_owned(),
        6 => format!("cat {file}"),
        7 => format!("sort -o {file} {file}"),
        8 => format!("cp {file} copy-{}.txt", chance.below(3)),
        _ => "clear; ls".to_owned(),
    };
    vec![json!([text(&line), keys(&["Return"])])]
}
