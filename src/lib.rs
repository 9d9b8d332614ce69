//! The `longhaul` command: its library, so that tests can reach its parts.
//!
//! What it shares with the node's program is in `longhaul-node`, whose invariants hold here too:
//! stdout is data and stderr the rest; text of unknown origin passes through [`output::escape`];
//! errors are shown once, with their causes and a hint; the process ends in `main.rs` alone.

pub mod benchmark;
pub mod cli;
pub mod client;
pub mod commands;
pub mod error;
pub mod follow;
pub mod prices;
pub mod reading;
pub mod runfile;
pub mod show;
pub mod sides;
pub mod strict;
pub mod upload;

use std::ffi::OsString;
use std::path::Path;

use longhaul_node::error::NodeError;
pub use longhaul_node::{bases, doctor, exit, machine, nearest, output, places, settings, signals, units, worker};

use crate::cli::{Cli, Command};
use crate::error::CliError;
use crate::exit::Exit;
use crate::settings::Settings;

/// Does what the arguments ask, and says how the process is to end.
#[must_use]
pub fn run(args: Vec<OsString>) -> Exit {
    let cli: Cli = match longhaul_node::parse(args) {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };
    longhaul_node::trace(cli.everywhere.verbose);
    longhaul_node::shown(dispatch(cli))
}

fn dispatch(cli: Cli) -> Result<Exit, CliError> {
    // What needs no settings does not fail for them.
    match &cli.command {
        Command::Settings(args) => return commands::settings::settings(args).map(|()| Exit::Success),
        Command::Lint(args) => return commands::lint::run(args).map_err(CliError::Lint),
        Command::Plan(args) => return commands::plan::plan(args).map(|()| Exit::Success),
        _ => {}
    }
    let file = cli.everywhere.settings.or_else(places::settings_file);
    let settings = settings::load(file.as_deref()).map_err(NodeError::Settings)?;
    longhaul_node::wait(act(cli.command, &settings, file.as_deref()))
}

async fn act(command: Command, settings: &Settings, file: Option<&Path>) -> Result<Exit, CliError> {
    match command {
        Command::Run(args) => return Box::pin(commands::run::run(*args, settings, file)).await,
        Command::Preflight(args) => return Box::pin(commands::preflight::preflight(*args, settings, file)).await,
        Command::Serve(args) => commands::serve::serve(args, settings, file).await,
        Command::Worker(args) => Box::pin(worker::worker(args, settings)).await.map_err(CliError::from),
        Command::Status(args) => commands::status::status(args, settings).await,
        Command::Watch(args) => commands::watch::watch(args, settings).await,
        Command::Show(args) => commands::show::show(args, settings).await,
        Command::Compare(args) => commands::compare::compare(args, settings).await,
        Command::Report(args) => commands::report::report(args, settings).await,
        Command::Export(args) => commands::export::export(args, settings).await,
        Command::Import(args) => commands::import::import(&args, settings),
        Command::Rejudge(args) => Box::pin(commands::rejudge::rejudge(*args, settings)).await,
        Command::Budget(args) => commands::budget::budget(args, settings).await,
        Command::Secrets(args) => commands::secrets::secrets(args, settings).await,
        Command::Cancel(args) => commands::cancel::cancel(args, settings).await,
        Command::Resume(args) => return Box::pin(commands::resume::resume(*args, settings, file)).await,
        Command::Layers(args) => Box::pin(commands::layers::layers(args, settings)).await,
        Command::Base(args) => commands::base::base(args, settings).await,
        Command::Store(args) => commands::store::store(args, settings).await,
        Command::Prices(args) => commands::prices::prices(&args, settings),
        Command::Plan(args) => commands::plan::plan(&args),
        Command::Slurm(args) => commands::slurm::slurm(args, settings, file).await,
        Command::Doctor(args) => return Ok(doctor::run(&args, settings).await?),
        Command::Lint(args) => return commands::lint::run(&args).map_err(CliError::Lint),
        Command::Settings(args) => commands::settings::settings(&args),
    }
    .map(|()| Exit::Success)
}
