//! The helper alone, for tests of sandboxes that do not need the whole `longhaul`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    let code = longhaul_helper::dispatch(&args).unwrap_or(2);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
