//! `sudo` and `pkexec` of ours.
//!
//! A rootless container runs with `no_new_privs`, so no set-user-id file gives
//! privileges. This program asks the helper, which is root already: it sends the command
//! and its own standard streams over a socket, and ends as the command ends. A caller
//! that is root itself changes its account and goes on as the command.

mod args;
mod client;
mod server;

use std::ffi::OsString;

pub(crate) use server::serve;

use self::args::Parsed;

/// Where the helper listens for such requests, open to every account of the sandbox.
const SOCKET: &str = "/run/longhaul-sudo.sock";

/// Runs as `sudo` or `pkexec` (`name`) and returns the exit code.
pub(crate) fn shim(name: &str, args: &[OsString]) -> i32 {
    let words: Vec<String> = args.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let parsed = if name == "pkexec" { args::pkexec(&words) } else { args::sudo(&words) };
    match parsed {
        Ok(Parsed::Run(invocation)) => client::run(invocation),
        Ok(Parsed::Nothing(text)) => {
            crate::os::say(text);
            0
        }
        Err(message) => {
            crate::os::complain(&format!("{name}: {message}"));
            1
        }
    }
}
