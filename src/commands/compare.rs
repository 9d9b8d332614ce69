//! `longhaul compare`: agents side by side, and what is known of their difference.

use clap::Args;
use longhaul_core::measure::Options;
use longhaul_report::{findings, render};

use crate::cli::SourceArgs;
use crate::error::CliError;
use crate::output::{self, Format};
use crate::settings::Settings;
use crate::sides::{Named, Sides};

/// `longhaul compare`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul compare latest                              the agents of a run with each other
  longhaul compare 0abc 0abd                           two runs
  longhaul compare 0abc:claude 0abc:gpt 0abd:claude    agents of runs
  longhaul compare latest old-results#latest           runs of two stores
  longhaul compare latest second-opinion               as settled, and as `longhaul rejudge` has it
  longhaul compare latest --csv > agents.csv

Only what both sides have is compared, by task and sample; what is left out is named, and what
faults could change is said. A difference that so few episodes cannot show is said not to be
known. docs/comparing.md says how to read it, docs/metrics.md how each number is made.")]
pub struct CompareArgs {
    /// What is compared: RUN (all its agents), RUN:AGENT, or STORE#RUN[:AGENT] for a run of another
    /// store (STORE is its folder, or the access file of its coordinator). The folder that `rejudge`
    /// wrote stands for its run with those verdicts.
    #[arg(value_name = "RUN[:AGENT]", required = true)]
    pub sides: Vec<Named>,
    /// A table for programs: a line for each agent.
    #[arg(long, conflicts_with_all = ["json", "format"])]
    pub csv: bool,
    /// JSON for programs, with everything: the same as `--format json`.
    #[arg(long)]
    pub json: bool,
    /// How intervals and tests are made.
    #[command(flatten)]
    pub statistics: StatisticsArgs,
    /// Where from.
    #[command(flatten)]
    pub source: SourceArgs,
    /// The form of the answer.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// How intervals and tests are made.
#[derive(Clone, Copy, Debug, Args)]
pub struct StatisticsArgs {
    /// How sure intervals are, in percent; tests are held to the same.
    #[arg(long, value_name = "PERCENT", default_value_t = 95,
          value_parser = clap::value_parser!(u8).range(50..=99), help_heading = "Statistics")]
    pub confidence: u8,
    /// How many resamples a bootstrap draws.
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(100..=1_000_000), help_heading = "Statistics")]
    pub resamples: u32,
    /// What the draws are seeded with: the same number gives the same table.
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Statistics")]
    pub seed: u64,
    /// Differences of pass rates below this many points do not matter.
    #[arg(long, value_name = "POINTS", default_value_t = 5,
          value_parser = clap::value_parser!(u8).range(1..=50), help_heading = "Statistics")]
    pub margin: u8,
}

impl From<StatisticsArgs> for Options {
    fn from(args: StatisticsArgs) -> Self {
        Self {
            confidence: f64::from(args.confidence) / 100.0,
            resamples: args.resamples,
            seed: args.seed,
            margin: f64::from(args.margin) / 100.0,
            ..Self::default()
        }
    }
}

/// Compares what is meant.
///
/// # Errors
///
/// Fewer than two sides are meant, or one is not there or cannot be read.
pub async fn compare(args: CompareArgs, settings: &Settings) -> Result<(), CliError> {
    let sides = Sides::read(&args.sides, &args.source, settings).await?;
    if let [one] = sides.sides.as_slice() {
        let message = format!("`{}` is alone: name another run or agent, or a run of several agents", one.label);
        return Err(CliError::Usage(message));
    }
    let found = findings(&sides.sides, &args.statistics.into());
    match (args.csv, args.json, args.format) {
        (true, ..) => output::data(&render::csv(&found)),
        (_, true, _) | (.., Format::Json) => output::json(&found),
        (_, _, Format::Human) => output::data(&render::text(&found)),
    }
    .map_err(CliError::Output)
}
