//! `longhaul report`: runs as a page, a document or a table, for people who do not run Longhaul.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use longhaul_core::digest::Digest;
use longhaul_core::ids::RunId;
use longhaul_report::{Findings, Trajectories, chosen_failures, findings, render};

use crate::cli::SourceArgs;
use crate::commands::compare::StatisticsArgs;
use crate::error::CliError;
use crate::settings::Settings;
use crate::sides::{Named, Sides};
use crate::{output, reading};

/// `longhaul report`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul report latest -o report.html
  longhaul report 0abc 0abd:claude --store results -o report.html
  longhaul report latest old-results#latest -o report.md
  longhaul report latest --format csv -o agents.csv

A page is one file that needs no network: tables, intervals, dollars against what was reached,
budgets, envs by agents, and failures with their last screens. What the numbers mean is in
docs/comparing.md and docs/metrics.md. A file that is there already is replaced.")]
pub struct ReportArgs {
    /// The runs: RUN, RUN:AGENT, or STORE#RUN for a run of another store (STORE is its folder, or
    /// the access file of its coordinator). The folder that `rejudge` wrote stands for its run
    /// with those verdicts.
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<Named>,
    /// The file to be written.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// The form of the file, if its name does not say: .html, .md or .csv.
    #[arg(long, value_enum)]
    pub format: Option<ReportFormat>,
    /// At most so many failures with their last screens.
    #[arg(long, value_name = "N", default_value_t = 24)]
    pub failures: usize,
    /// How intervals are made.
    #[command(flatten)]
    pub statistics: StatisticsArgs,
    /// Where from.
    #[command(flatten)]
    pub source: SourceArgs,
}

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// A page.
    Html,
    /// A document of plain text.
    Markdown,
    /// A table: a line for each agent.
    Csv,
}

impl ReportFormat {
    /// The form that a file's name says.
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "html" | "htm" => Some(Self::Html),
            "md" | "markdown" => Some(Self::Markdown),
            "csv" => Some(Self::Csv),
            _ => None,
        }
    }
}

/// Writes a report of the runs that are meant.
///
/// # Errors
///
/// A run is not there or cannot be read, the form is not known, or the file cannot be written.
pub async fn report(args: ReportArgs, settings: &Settings) -> Result<(), CliError> {
    let format = args.format.or_else(|| ReportFormat::of(&args.output)).ok_or_else(|| {
        let name = args.output.display();
        CliError::Usage(format!("the name of {name} says no form: name it .html, .md or .csv, or say --format"))
    })?;
    let sides = Sides::read(&args.runs, &args.source, settings).await?;
    let found = findings(&sides.sides, &args.statistics.into());
    let text = match format {
        ReportFormat::Html => {
            let screens = screens(&sides, args.failures, settings).await?;
            render::html(&found, &sides.sides, args.failures, &screens)
        }
        ReportFormat::Markdown => render::markdown(&found),
        ReportFormat::Csv => render::csv(&found),
    };
    write(&args.output, &text)?;
    output::note(&format!("{} has {}", args.output.display(), said(&found)));
    Ok(())
}

fn said(found: &Findings) -> String {
    let episodes: u64 = found.sides.iter().map(|side| side.episodes).sum();
    let count = found.sides.len();
    format!("{episodes} episodes of {count} {}", if count == 1 { "agent" } else { "agents" })
}

/// The last screens of the failures that are shown.
async fn screens(sides: &Sides, most: usize, settings: &Settings) -> Result<BTreeMap<Digest, Vec<u8>>, CliError> {
    let mut wanted: BTreeMap<RunId, Vec<Digest>> = BTreeMap::new();
    for (_, episode) in chosen_failures(&sides.sides, most) {
        wanted.entry(episode.id.run).or_default().extend(episode.last_screen);
    }
    let mut found = BTreeMap::new();
    for (run, digests) in wanted {
        let Some(source) = sides.source(run, settings).await? else { continue };
        let read = move |source: &reading::Reading| -> Result<Vec<(Digest, Vec<u8>)>, CliError> {
            let mut read = Vec::new();
            for digest in digests {
                // A screen that is gone leaves a gap in the page, and no error.
                read.extend(source.blob(&digest)?.map(|bytes| (digest, bytes)));
            }
            Ok(read)
        };
        found.extend(reading::blocking(source, read).await??);
    }
    Ok(found)
}

/// Whole or not at all: who looks at it never sees half a page. It may be read by whom the umask
/// lets, as any file that is written, though temporary ones are private.
fn write(path: &Path, text: &str) -> Result<(), CliError> {
    let failed = |source| CliError::File { path: path.to_owned(), doing: "written", source };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let mut file = tempfile::Builder::new()
        .permissions(std::fs::Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(failed)?;
    std::io::Write::write_all(&mut file, text.as_bytes()).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_as_readable_as_any_file() {
        let root = tempfile::tempdir().unwrap();
        let (report, other) = (root.path().join("report.html"), root.path().join("other"));
        write(&report, "page").unwrap();
        std::fs::write(&other, "file").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&report), mode(&other));
        assert_eq!(std::fs::read_to_string(&report).unwrap(), "page");
    }
}
