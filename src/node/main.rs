//! The `longhaul-node` program: workers, and the helpers of their sandboxes, in one static file.
//!
//! Inside a sandbox the same file is the helper; whether it is, its name or first argument says.

use std::ffi::OsString;

fn main() {
    let args: Vec<OsString> = std::env::args_os().collect();
    let code = match longhaul_helper::dispatch(&args) {
        Some(code) => code,
        None => longhaul_node::run(args).code(),
    };
    std::process::exit(code);
}
