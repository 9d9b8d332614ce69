//! The `longhaul` command: its library, so that tests can reach its parts.
//!
//! Invariants: stdout is data and stderr the rest; text of unknown origin passes through
//! [`output::escape`]; errors are shown once, here, with their causes and a hint; the
//! process ends in `main.rs` alone.

pub mod bases;
pub mod benchmark;
pub mod cli;
pub mod client;
pub mod commands;
pub mod doctor;
pub mod error;
pub mod exit;
pub mod follow;
pub mod nearest;
pub mod output;
pub mod places;
pub mod prices;
pub mod runfile;
pub mod settings;
pub mod show;
pub mod signals;
pub mod strict;
pub mod units;
pub mod upload;

use std::ffi::OsString;
use std::io;
use std::path::Path;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command};
use crate::error::CliError;
use crate::exit::Exit;
use crate::settings::Settings;

/// Does what the arguments ask, and says how the process is to end.
#[must_use]
pub fn run(args: Vec<OsString>) -> Exit {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too, and go to stdout; a reader that went
            // away is no error.
            let _unread = error.print();
            return if error.use_stderr() { Exit::Usage } else { Exit::Success };
        }
    };
    trace(cli.verbose);
    match dispatch(cli) {
        Ok(exit) => exit,
        Err(CliError::Output(source)) if source.kind() == io::ErrorKind::BrokenPipe => Exit::Success,
        Err(error) => {
            output::note(&error::render(&error, output::stderr_colours()));
            error.exit()
        }
    }
}

fn dispatch(cli: Cli) -> Result<Exit, CliError> {
    // What needs no settings does not fail for them.
    match &cli.command {
        Command::Settings(args) => return commands::settings::settings(args).map(|()| Exit::Success),
        Command::Lint(args) => return commands::lint::run(args).map_err(CliError::Lint),
        _ => {}
    }
    let file = cli.settings.or_else(places::settings_file);
    let settings = settings::load(file.as_deref()).map_err(CliError::Settings)?;
    let runtime = tokio::runtime::Runtime::new().map_err(|error| CliError::Machine(Box::new(error)))?;
    let outcome = runtime.block_on(act(cli.command, &settings, file.as_deref()));
    // A blocking read that hangs on a dead disk does not keep the process.
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    outcome
}

async fn act(command: Command, settings: &Settings, file: Option<&Path>) -> Result<Exit, CliError> {
    match command {
        Command::Run(args) => return Box::pin(commands::run::run(*args, settings, file)).await,
        Command::Preflight(args) => return Box::pin(commands::preflight::preflight(*args, settings, file)).await,
        Command::Serve(args) => commands::serve::serve(args, settings, file).await,
        Command::Worker(args) => Box::pin(commands::worker::worker(args, settings)).await,
        Command::Status(args) => commands::status::status(args, settings).await,
        Command::Watch(args) => commands::watch::watch(args, settings).await,
        Command::Show(args) => commands::show::show(args, settings).await,
        Command::Export(args) => commands::export::export(args, settings).await,
        Command::Budget(args) => commands::budget::budget(args, settings).await,
        Command::Secrets(args) => commands::secrets::secrets(args, settings).await,
        Command::Cancel(args) => commands::cancel::cancel(args, settings).await,
        Command::Layers(args) => Box::pin(commands::layers::layers(args, settings)).await,
        Command::Base(args) => commands::base::base(args, settings).await,
        Command::Store(args) => commands::store::store(args, settings),
        Command::Prices(args) => commands::prices::prices(&args, settings),
        Command::Plan(args) => commands::plan::plan(&args),
        Command::Slurm(args) => commands::slurm::slurm(args, settings, file).await,
        Command::Doctor(args) => return doctor::run(&args, settings).await,
        Command::Lint(args) => return commands::lint::run(&args).map_err(CliError::Lint),
        Command::Settings(args) => commands::settings::settings(&args),
    }
    .map(|()| Exit::Success)
}

/// Diagnostics go to stderr; `RUST_LOG` decides, else `-v`.
fn trace(verbose: u8) {
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
