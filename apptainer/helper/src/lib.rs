//! The program inside a sandbox: its first process, and its `sudo`.
//!
//! One `apptainer exec` starts it as process 1 of the sandbox's pid namespace, root of
//! its user namespace. It runs hooks and commands for the worker, starts the display,
//! copies files and reaps orphans, over a unix socket that only it and the worker can
//! open ([`longhaul_core::helper`]). When it ends, the kernel ends all that is left.
//!
//! The same file answers to the names `sudo` and `pkexec` inside the sandbox, where no
//! set-user-id file can work (the container runs with `no_new_privs`).
//!
//! Threads and blocking calls only: a sandbox carries no async runtime.

mod accounts;
mod attach;
mod display;
mod exec;
mod files;
mod forward;
mod frames;
mod os;
mod processes;
mod reaper;
mod serve;
mod sudo;
mod units;

use std::ffi::OsString;
use std::path::Path;

/// Does what the program was started for, if that is one of the helper's parts: the
/// name it was started by (`helper`, `sudo`, `pkexec`) or the first argument `__helper`
/// decides. Returns the exit code, or nothing if the call is not for the helper.
#[must_use]
pub fn dispatch(args: &[OsString]) -> Option<i32> {
    let name = args.first().map(Path::new).and_then(Path::file_name)?.to_string_lossy().into_owned();
    match name.as_str() {
        "sudo" | "pkexec" => Some(sudo::shim(&name, args.get(1..).unwrap_or_default())),
        "helper" | "longhaul-helper" => Some(command(args.get(1..).unwrap_or_default())),
        _ if args.get(1).is_some_and(|first| first == "__helper") => Some(command(args.get(2..).unwrap_or_default())),
        _ => None,
    }
}

/// The helper's own commands.
fn command(args: &[OsString]) -> i32 {
    let words: Vec<_> = args.iter().map(|word| word.to_string_lossy()).collect();
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match words.as_slice() {
        ["serve"] => serve::serve(),
        ["forward", port, socket] => match port.parse() {
            Ok(port) => forward::forward(port, Path::new(socket)),
            Err(_) => {
                os::complain("helper: forward PORT SOCKET");
                2
            }
        },
        ["attach", "--after", port, _, _, ..] => match (port.parse(), args) {
            (Ok(port), [_, _, _, socket, program, rest @ ..]) => {
                attach::attach(Path::new(socket), Some(port), program, rest)
            }
            _ => 2,
        },
        ["attach", first, _, ..] if *first != "--after" => match args {
            [_, socket, program, rest @ ..] => attach::attach(Path::new(socket), None, program, rest),
            _ => 2,
        },
        ["protocol"] => {
            os::say(&format!("{}\n", longhaul_core::helper::HELPER_PROTOCOL));
            0
        }
        _ => {
            os::complain("helper: this program is started by a worker as `helper serve`");
            2
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_are_left_to_the_caller() {
        assert_eq!(dispatch(&["longhaul".into(), "run".into()]), None);
        assert_eq!(dispatch(&[]), None);
        assert_eq!(dispatch(&["/opt/x/helper".into(), "nonsense".into()]), Some(2));
        assert_eq!(dispatch(&["/usr/bin/longhaul".into(), "__helper".into()]), Some(2));
        assert_eq!(dispatch(&["helper".into(), "forward".into(), "no".into(), "/s".into()]), Some(2));
        assert_eq!(dispatch(&["helper".into(), "attach".into(), "/s".into()]), Some(2));
        assert_eq!(dispatch(&["helper", "attach", "--after", "1", "/s"].map(Into::into)), Some(2));
        assert_eq!(dispatch(&["helper", "attach", "--after", "no", "/s", "/bin/true"].map(Into::into)), Some(2));
    }

    #[test]
    fn serving_is_refused_outside_a_sandbox() {
        // It kills every process it can see: it must never do so to a host.
        assert_eq!(dispatch(&["helper".into(), "serve".into()]), Some(2));
    }
}
