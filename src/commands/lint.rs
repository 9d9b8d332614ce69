//! `longhaul lint`: every oddity of a benchmark, with file, line and what to do.

use std::io;
use std::path::PathBuf;

use clap::Args;

use crate::benchmark::{Benchmark, Depth, ReadError, ScriptsError, check_scripts};
use crate::exit::Exit;
use crate::output::{self, Format};
use longhaul_core::lint::{Code, human};

/// `longhaul lint`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul lint examples/benchmark
  longhaul lint CLONE/benchmarks/cua_world --scripts
  longhaul lint BENCHMARK --format json | jq '.findings[] | select(.severity == \"error\")'

Findings are data: the command succeeds whatever it finds, unless --deny says otherwise.
An error is a file that cannot be used; only that env or task is refused when it is run.")]
pub struct LintArgs {
    /// The benchmark: a folder with `environments/*/env.json` and `splits/`.
    #[arg(value_name = "BENCHMARK")]
    pub benchmark: PathBuf,
    /// Also asks bash and python3 whether scripts and verifiers parse; takes a minute for
    /// all of CUA-World, and runs none of them.
    #[arg(long)]
    pub scripts: bool,
    /// Shows every finding, in place of the first three of each kind.
    #[arg(long, conflicts_with = "format")]
    pub all: bool,
    /// Ends with code 3 if there is a finding of this severity or a graver one.
    #[arg(long, value_enum, value_name = "SEVERITY")]
    pub deny: Option<Deny>,
    /// The form of the result on stdout.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// From which severity on findings make the command fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Deny {
    /// Errors.
    Error,
    /// Errors and warnings.
    Warning,
}

/// A benchmark that cannot be linted.
#[derive(Debug, thiserror::Error)]
pub enum LintError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Its scripts cannot be checked.
    #[error(transparent)]
    Scripts(#[from] ScriptsError),
    /// The result cannot be written.
    #[error("cannot write the result")]
    Output(#[source] io::Error),
}

impl LintError {
    /// How the command ends.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Read(_) => Exit::Input,
            Self::Scripts(_) => Exit::Machine,
            Self::Output(_) => Exit::Unexpected,
        }
    }
}

/// Reads a benchmark and reports what is odd in it.
///
/// # Errors
///
/// The folder is no benchmark, bash or python3 is missing, or stdout cannot be written.
pub fn run(args: &LintArgs) -> Result<Exit, LintError> {
    let benchmark = Benchmark::read(&args.benchmark, Depth::Checks)?;
    let scripts = if args.scripts { check_scripts(&benchmark.layout)? } else { Vec::new() };
    let mut report = benchmark.into_report();
    if args.scripts {
        // Python itself has the last word on verifiers.
        report.findings.retain(|finding| finding.code != Code::VerifierSyntax);
    }
    report.findings.extend(scripts);
    report.findings.sort();
    // A verifier with leaked text is met by both checks.
    report.findings.dedup();
    match args.format {
        Format::Human => output::data(&human(&report, args.all)),
        Format::Json => output::json(&report),
    }
    .map_err(LintError::Output)?;
    let denied = args.deny.is_some_and(|deny| {
        let least = match deny {
            Deny::Error => longhaul_core::lint::Severity::Error,
            Deny::Warning => longhaul_core::lint::Severity::Warning,
        };
        report.findings.iter().any(|finding| finding.severity >= least)
    });
    Ok(if denied { Exit::Input } else { Exit::Success })
}
