//! `longhaul plan`: run files compared, and printed in one form.

use serde_json::json;

use crate::cli::{PlanArgs, PlanCommand};
use crate::error::CliError;
use crate::output::{self, Format};
use crate::runfile::{self, RunFile};

/// Compares or prints run files.
///
/// # Errors
///
/// One of them cannot be read, or makes no sense.
pub fn plan(args: &PlanArgs) -> Result<(), CliError> {
    match &args.command {
        PlanCommand::Print { file } => {
            let run = RunFile::read(file).map_err(CliError::Strict)?;
            output::data(&runfile::print(&run))
        }
        PlanCommand::Diff { one, other, format } => {
            let read = |path: &std::path::Path| RunFile::read(path).map_err(CliError::Strict);
            let lines = runfile::difference(&read(one)?, &read(other)?);
            match format {
                Format::Json => output::json(&json!({ "differences": lines })),
                Format::Human if lines.is_empty() => {
                    output::note("they mean the same");
                    Ok(())
                }
                Format::Human => output::data(&output::escape(&format!("{}\n", lines.join("\n")))),
            }
        }
    }
    .map_err(CliError::Output)
}
