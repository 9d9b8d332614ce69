//! The node's program, and what the `longhaul` command shares with it.
//!
//! A node runs workers and the helpers of their sandboxes, and nothing else: no coordinator and no
//! store are linked into its program, which a test holds. Whatever both programs do is here once:
//! settings and places, the worker, the layer folder, the doctor, what is shown and how a process
//! ends.
//!
//! Invariants: stdout is data and stderr the rest; text of unknown origin passes through
//! [`output::escape`]; errors are shown once, in [`shown`], with their causes and a hint; a
//! process ends in its `main.rs` alone.

pub mod bases;
pub mod cli;
pub mod doctor;
pub mod error;
pub mod exit;
mod files;
pub mod layers;
pub mod machine;
pub mod nearest;
pub mod output;
pub mod places;
pub mod settings;
pub mod signals;
pub mod units;
pub mod worker;

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command, NodeLayersArgs, NodeLayersCommand};
use crate::error::{Explained, NodeError};
use crate::exit::Exit;

/// What the node's program is called, beside the whole one.
pub const PROGRAM: &str = "longhaul-node";

/// Does what the arguments ask of the node's program, and says how the process is to end.
#[must_use]
pub fn run(args: Vec<OsString>) -> Exit {
    let cli: Cli = match parse(args) {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };
    trace(cli.everywhere.verbose);
    shown(act(cli))
}

fn act(cli: Cli) -> Result<Exit, NodeError> {
    let file = cli.everywhere.settings.or_else(places::settings_file);
    let settings = || settings::load(file.as_deref()).map_err(NodeError::Settings);
    match cli.command {
        Command::Worker(args) => {
            let settings = settings()?;
            wait(Box::pin(worker::worker(args, &settings)))
        }
        Command::Layers(NodeLayersArgs { command: NodeLayersCommand::Folder(command) }) => {
            let settings = settings()?;
            wait(layers::layers(command, &settings))
        }
        Command::Doctor(args) => {
            let settings = settings()?;
            return wait(doctor::run(&args, &settings));
        }
        // What is not for this program fails for nothing else: no settings are read.
        Command::Layers(NodeLayersArgs { command: NodeLayersCommand::Other(words) }) => {
            Err(NodeError::not_here(Some("layers"), &words))
        }
        Command::Other(words) => Err(NodeError::not_here(None, &words)),
    }
    .map(|()| Exit::Success)
}

/// Reads a command line. Help, the version and what makes no sense are said here.
///
/// # Errors
///
/// There is nothing more to do, and the process is to end so.
pub fn parse<C: Parser>(args: Vec<OsString>) -> Result<C, Exit> {
    C::try_parse_from(args).map_err(|error| {
        // Help and version come this way too, and go to stdout; a reader that went away is no error.
        let _unread = error.print();
        if error.use_stderr() { Exit::Usage } else { Exit::Success }
    })
}

/// Waits for what a command does.
///
/// # Errors
///
/// It fails, or nothing can be waited for here.
pub fn wait<T, E: From<NodeError>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    files::raise();
    let runtime = tokio::runtime::Runtime::new().map_err(|error| NodeError::Machine(Box::new(error)))?;
    let outcome = runtime.block_on(work);
    // A blocking read that hangs on a dead disk does not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(5));
    outcome
}

/// How a process ends whose command came out so. An error is shown.
pub fn shown<E: Explained>(outcome: Result<Exit, E>) -> Exit {
    match outcome {
        Ok(exit) => exit,
        Err(error) if error.unread().is_some_and(|source| source.kind() == io::ErrorKind::BrokenPipe) => Exit::Success,
        Err(error) => {
            output::note(&error::render(&error, output::stderr_colours()));
            error.exit()
        }
    }
}

/// Diagnostics go to stderr; `RUST_LOG` decides, else `-v`.
pub fn trace(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info,h2=warn,hyper=warn",
        _ => "debug,h2=info,hyper=info,tower=info",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    // A subscriber that is set already is a test's own.
    let _set = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(output::stderr_colours())
        .try_init();
}
