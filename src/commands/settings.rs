//! `longhaul settings`: the defaults, or whether a file is right.

use longhaul_node::error::NodeError;

use crate::cli::SettingsArgs;
use crate::error::CliError;
use crate::output;
use crate::settings;

/// Prints the defaults, or checks a file.
///
/// # Errors
///
/// The file is refused.
pub fn settings(args: &SettingsArgs) -> Result<(), CliError> {
    match &args.check {
        None => output::data(settings::DEFAULTS).map_err(CliError::Output),
        Some(file) => {
            settings::load(Some(file)).map_err(NodeError::Settings)?;
            output::note(&format!("{} is right", file.display()));
            Ok(())
        }
    }
}
