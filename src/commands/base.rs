//! `longhaul base`: the image that envs stand on, made here and carried elsewhere.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::LayerPlaceArgs;
use crate::error::CliError;
use crate::machine::machine;
use crate::output;
use crate::settings::Settings;
use crate::signals::Signals;

/// `longhaul base`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul base
  longhaul base --base ubuntu-22.04
  longhaul base --env gcompris_env
  longhaul base --beside /shared/bin/longhaul

Runs and workers make the image by themselves when they need it; this is for machines that
cannot. A program that finds its image beside itself uses it, and builds none.")]
pub struct BaseArgs {
    /// Means the image that this env stands on, in place of the usual one.
    #[arg(long, value_name = "ENV")]
    pub env: Option<String>,
    /// Also copies the built-in image to beside this program, a copy of this one, under the name
    /// that it looks for.
    #[arg(long, value_name = "PROGRAM")]
    pub beside: Option<PathBuf>,
    /// Where layers and scratch are.
    #[command(flatten)]
    pub place: LayerPlaceArgs,
}

/// Makes the image if it is not there, and prints its path.
///
/// # Errors
///
/// The machine lacks what makes it, or it cannot be copied.
pub async fn base(args: BaseArgs, settings: &Settings) -> Result<(), CliError> {
    let mut signals = Signals::new().map_err(|error| CliError::Machine(Box::new(error)))?;
    let machine = machine(&args.place, settings).await?;
    let env = args.env.as_deref();
    let name = machine.shipped_name(env);
    if args.beside.is_some() && name.is_none() {
        let message = "only a built-in image without certificates is looked for beside a program; name this one with \
                       --base there";
        return Err(CliError::Usage(message.to_owned()));
    }
    let image = tokio::select! {
        image = machine.image_of(env) => image?.path,
        () = signals.next() => return Err(CliError::Interrupted),
    };
    let path = match (args.beside, name) {
        (Some(program), Some(name)) => copy(&image, program.with_file_name(name))?,
        _ => image,
    };
    output::data(&format!("{}\n", path.display())).map_err(CliError::Output)
}

/// Written beside and renamed: who looks for it finds all of it or nothing.
fn copy(image: &Path, to: PathBuf) -> Result<PathBuf, CliError> {
    let fresh = to.with_extension(format!("{}.new", std::process::id()));
    let copied = std::fs::copy(image, &fresh).and_then(|_| std::fs::rename(&fresh, &to));
    copied.map_err(|source| {
        // What was begun is in nobody's way; the error is what matters.
        let _gone = std::fs::remove_file(&fresh);
        CliError::File { path: to.clone(), doing: "written", source }
    })?;
    Ok(to)
}
