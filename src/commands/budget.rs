//! `longhaul budget`: what a run may spend and has spent, and more of it.

use clap::{Args, Subcommand};
use longhaul_core::money::Money;
use longhaul_proto::v1;
use serde_json::{Value, json};

use crate::cli::SourceArgs;
use crate::client::{Client, Source};
use crate::commands::{cancel, serve};
use crate::error::CliError;
use crate::output::{self, Format, Table, Tone, cut};
use crate::settings::Settings;
use crate::show;

/// The most of a reason that a row shows.
const REASON_WIDTH: usize = 60;

/// `longhaul budget`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul budget show latest
  longhaul budget show 0abc --store results --format json
  longhaul budget raise latest --to $40
  longhaul budget raise latest --to 12.50 --agent claude
  longhaul budget raise latest --to 5 --judge

`spent` is what calls have cost, by the vendors' own counts of tokens where they gave them; what
no vendor has confirmed (an answer that never came, a worker that was lost) counts whole. `in
flight` is what attempts were granted and have not spent. The last line is the run's own.")]
pub struct BudgetArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: BudgetCommand,
}

/// `longhaul budget ...`
#[derive(Debug, Subcommand)]
pub enum BudgetCommand {
    /// Show the budgets of a run.
    Show {
        /// The run: its id, the unambiguous start or end of it, or `latest`.
        #[arg(value_name = "RUN", default_value = "latest")]
        run: String,
        /// Where from.
        #[command(flatten)]
        source: SourceArgs,
        /// The form of the answer.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Raise a cap: whoever waits for money goes on. A cap is never lowered.
    Raise {
        /// The run: its id, the unambiguous start or end of it, or `latest`.
        #[arg(value_name = "RUN")]
        run: String,
        /// The cap from now on, in dollars: `40`, `$40`, `12.50`.
        #[arg(long, value_name = "DOLLARS")]
        to: Money,
        /// The cap of all episodes of this agent, in place of the run's.
        #[arg(long, value_name = "NAME", conflicts_with = "judge")]
        agent: Option<String>,
        /// The cap of judging, in place of the run's.
        #[arg(long)]
        judge: bool,
        /// Where from.
        #[command(flatten)]
        source: SourceArgs,
    },
}

/// Shows or raises budgets.
///
/// # Errors
///
/// There is no such run or cap, it would be lowered, or the store cannot be read.
pub async fn budget(args: BudgetArgs, settings: &Settings) -> Result<(), CliError> {
    match args.command {
        BudgetCommand::Show { run, source, format } => {
            let source = Source::open(&source, settings).await?;
            let run = source.run(&run).await?;
            let budget = source.budget(&run.run_id).await?;
            match format {
                Format::Json => output::json(&budget_json(&run.run_id, &budget)),
                Format::Human => output::data(&budget_text(&run.run_id, &budget, output::stdout_colours())),
            }
            .map_err(CliError::Output)
        }
        BudgetCommand::Raise { run, to, agent, judge, source } => {
            let source = Source::open(&source, settings).await?;
            let run = source.run(&run).await?;
            let scope = match agent {
                Some(agent) => format!("agent {agent}"),
                None if judge => "judge".to_owned(),
                None => "run".to_owned(),
            };
            let request =
                v1::RaiseBudgetRequest { run_id: run.run_id, scope, cap_nanos: to.nanos(), by: cancel::who() };
            let raised = serve::ordered(source, settings, async |client: &Client| raise(client, request.clone()).await);
            let budget = raised.await?;
            output::note(&output::escape(&format!("the budget of {} is {to} now", request.scope)));
            output::data(&budget_text(&request.run_id, &budget, output::stdout_colours())).map_err(CliError::Output)
        }
    }
}

/// Raises it.
async fn raise(client: &Client, request: v1::RaiseBudgetRequest) -> Result<v1::ShowBudgetResponse, CliError> {
    let answer = client.control.clone().raise_budget(request).await.map_err(client.refused("raise the budget"))?;
    Ok(answer.into_inner())
}

const fn money(nanos: u64) -> Money {
    Money::from_nanos(nanos)
}

/// The row of the run itself.
fn whole(budget: &v1::ShowBudgetResponse) -> Option<&v1::BudgetRow> {
    budget.scopes.iter().find(|row| row.scope == "run")
}

/// A table of scopes, and one line that says it all.
fn budget_text(run: &str, budget: &v1::ShowBudgetResponse, colours: bool) -> String {
    let Some(whole) = whole(budget) else { return format!("run {run} has no model calls and no budget\n") };
    let mut table = Table::new(&[
        "scope",
        "cap",
        "spent",
        "in flight",
        "unconfirmed",
        "most in flight",
        "overshoot",
        "waiting",
        "",
    ]);
    let amount = |nanos: u64| (show::cents(money(nanos)), if nanos == 0 { Tone::Dim } else { Tone::Plain });
    for row in &budget.scopes {
        let cap = row.cap_nanos.map_or_else(|| "none".to_owned(), |cap| money(cap).to_string());
        let overshoot =
            (show::cents(money(row.overshoot_nanos)), if row.overshoot_nanos > 0 { Tone::Bad } else { Tone::Dim });
        table.row([
            (row.scope.clone(), Tone::Plain),
            (cap, if row.cap_nanos.is_some() { Tone::Plain } else { Tone::Dim }),
            amount(row.settled_nanos),
            amount(row.escrow_nanos),
            amount(row.unconfirmed_nanos),
            amount(row.largest_exposure_nanos),
            overshoot,
            (row.waiting.to_string(), if row.waiting > 0 { Tone::Warn } else { Tone::Dim }),
            (cut(&remark(row), REASON_WIDTH), Tone::Warn),
        ]);
    }
    let cap = whole.cap_nanos.map_or_else(|| "none".to_owned(), |cap| money(cap).to_string());
    format!(
        "{}\ncap {cap}, spent {}, largest exposure in flight {}, overshoot {}\n",
        table.render(colours),
        money(whole.settled_nanos),
        money(whole.largest_exposure_nanos),
        money(whole.overshoot_nanos)
    )
}

/// Why nothing more is granted, or that little is left.
fn remark(row: &v1::BudgetRow) -> String {
    match (row.stopped.as_str(), row.warned_percent) {
        ("", 0) => String::new(),
        ("", percent) => format!("over {percent} % of it is spent"),
        (stopped, _) => stopped.to_owned(),
    }
}

/// The same for programs; amounts are exact, as texts.
fn budget_json(run: &str, budget: &v1::ShowBudgetResponse) -> Value {
    let amount = |nanos: u64| show::dollars(money(nanos));
    let row = |row: &v1::BudgetRow| {
        json!({
            "scope": row.scope,
            "cap_dollars": row.cap_nanos.map(amount),
            "spent_dollars": amount(row.settled_nanos),
            "in_flight_dollars": amount(row.escrow_nanos),
            "unconfirmed_dollars": amount(row.unconfirmed_nanos),
            "largest_exposure_dollars": amount(row.largest_exposure_nanos),
            "overshoot_dollars": amount(row.overshoot_nanos),
            "waiting": row.waiting,
            "warned_percent": row.warned_percent,
            "stopped": Some(&row.stopped).filter(|reason| !reason.is_empty()),
        })
    };
    json!({ "run": run, "scopes": budget.scopes.iter().map(row).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_has_cap_spent_exposure_and_overshoot_to_the_last_unit() {
        let row = v1::BudgetRow {
            scope: "run".to_owned(),
            cap_nanos: Some(5_000_000_000),
            settled_nanos: 4_999_999_999,
            largest_exposure_nanos: 1_250_000_000,
            overshoot_nanos: 1,
            warned_percent: 95,
            ..v1::BudgetRow::default()
        };
        let agent = v1::BudgetRow { scope: "agent \u{1b}[31mred".to_owned(), ..row.clone() };
        let text = budget_text("0abc", &v1::ShowBudgetResponse { scopes: vec![row, agent] }, false);
        let last = text.lines().last().unwrap();
        assert_eq!(last, "cap $5.00, spent $4.999999999, largest exposure in flight $1.25, overshoot $0.000000001");
        assert!(text.contains("over 95 % of it is spent"), "{text}");
        assert!(!text.contains('\u{1b}'), "a name is data");
    }

    #[test]
    fn a_run_without_money_says_so() {
        let text = budget_text("0abc", &v1::ShowBudgetResponse::default(), false);
        assert_eq!(text, "run 0abc has no model calls and no budget\n");
    }
}
