//! `longhaul rejudge`: another judge, or another checklist, for trajectories that are stored.
//! Nothing is run, and no settlement is changed.

mod case;
mod folder;
mod verdicts;

pub(crate) use verdicts::{folder_of, verdicts_of};

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use longhaul_coordinator::replicas;
use longhaul_core::digest::Digest;
use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::ids::RunId;
use longhaul_core::judge::{JudgePlan, Judgement};
use longhaul_core::money::Money;
use longhaul_core::outcome::{Settlement, Verdict};
use longhaul_core::rounds::judged_again;
use longhaul_core::text::chain;
use longhaul_gateway::ports::SystemClock;
use longhaul_gateway::{Account, Gateway, GatewayConfig, Opening, Proxies};
use longhaul_proto::{convert, v1};
use longhaul_report::Opinion;
use longhaul_worker::judge::{Judge, JudgeError};
use rand::TryRngCore as _;
use serde_json::{Value, json};
use tokio::task::LocalSet;

use self::case::{Asked, Case, Checklists};
use self::folder::{Capped, Folder};
use super::run::secrets::{self, Keys, MissingKey};
use crate::benchmark::{self, Limits, ModelTerms};
use crate::cli::{Cap, JudgeArg, SourceArgs, cap, judge_arg};
use crate::client::Source;
use crate::commands::prices;
use crate::error::CliError;
use crate::output::{self, Format, Table, Tone, cut};
use crate::runfile::JudgeTerms;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::{bases, reading, show};

/// The most of a reason that a row shows.
const REASON_WIDTH: usize = 70;

/// `longhaul rejudge`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul rejudge latest --judge gemini:gemini-3-flash-preview --max-cost 5 -o second-opinion
  longhaul rejudge 0abc --judge 'my-vllm:Qwen/Qwen3-VL-8B?judges=3&frames=changed' -o three
  longhaul rejudge latest --judge openai:gpt-5.4 --checklist mine -o other-checklist

The folder holds rejudge.json, verdicts.jsonl (an episode a line, with what it was settled as),
calls.jsonl and blobs (each question and answer as it was sent). The same command again goes on
with it: no episode is judged twice, and what it has cost counts against --max-cost.
The store is only read: what an episode was settled as stays. Keys of vendors are read from the
environment, as `longhaul run` reads them. It ends with 7 if episodes could not be judged.")]
pub struct RejudgeArgs {
    /// The run: its id, the unambiguous start or end of it, or `latest`.
    #[arg(value_name = "RUN", default_value = "latest")]
    pub run: String,
    /// The folder for what comes of it: new, empty, or of the same question.
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// The model that judges, `ENDPOINT:MODEL?judges=3`, as for `longhaul run`; if nobody says,
    /// the one that judged the run, else the setting `run.judge`.
    #[arg(long, value_name = "SPEC", value_parser = judge_arg)]
    pub judge: Option<JudgeArg>,
    /// How many judges look at each trajectory, in place of what the judge says.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=9))]
    pub judges: Option<u32>,
    /// Another checklist: a file for every task, or a folder with ENV/TASK.json; the run's own if
    /// nobody says.
    #[arg(long, value_name = "PATH")]
    pub checklist: Option<PathBuf>,
    /// The most dollars that it may spend.
    #[arg(long, value_name = "DOLLARS", value_parser = cap)]
    pub max_cost: Option<Cap>,
    /// How many trajectories are judged at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub parallel: u32,
    /// A file of prices, in place of the setting `prices.file`.
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,
    /// The form of the answer.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Where from.
    #[command(flatten)]
    pub source: SourceArgs,
}

/// What all judging of a command shares.
struct Bench {
    source: Source,
    account: Account,
    plan: JudgePlan,
    gateway: GatewayPlan,
    checklists: Checklists,
    folder: Arc<Folder>,
}

/// What came of an episode.
struct Judged {
    row: v1::EpisodeRow,
    settlement: Option<Settlement>,
    opinion: Result<Opinion, String>,
    /// There was something to judge, and it could not be.
    failed: bool,
}

impl Judged {
    /// It for programs.
    fn json(&self) -> Value {
        let opinion = self.opinion.as_ref().ok();
        json!({
            "episode": self.row.episode_id,
            "task": self.row.task,
            "agent": self.row.agent,
            "sample": self.row.sample,
            "settled_as": self.settlement,
            "passed": opinion.map(Opinion::passed),
            "score": opinion.map(Opinion::score),
            "judgement": opinion.and_then(|opinion| opinion.judgement.as_ref()),
            "rounds": opinion.map(|opinion| &opinion.rounds).filter(|rounds| !rounds.is_empty()),
            "error": self.opinion.as_ref().err(),
        })
    }
}

/// Judges the trajectories of a run.
///
/// # Errors
///
/// The run is not there, nobody is named to judge, a key or a price is missing, the folder holds
/// something else, episodes could not be judged, or a signal came.
pub async fn rejudge(args: RejudgeArgs, settings: &Settings) -> Result<(), CliError> {
    let source = Source::open(&args.source, settings).await?;
    let summary = source.run(&args.run).await?;
    let run: RunId = convert::parsed("run_id", &summary.run_id).map_err(CliError::Answer)?;
    let rows = source.episodes(run).await?;
    if reading::imported(&source, rows.first()).await?.is_some() {
        let message = "was imported: its tasks are not there, and without them nothing of it can be judged";
        return Err(CliError::Usage(format!("run {run} {message}")));
    }
    let max_cost = args.max_cost.and_then(|cap| cap.0);
    let plan = judge_plan(&args, &source, &rows, settings).await?;
    let (gateway, known) = gateway_plan(&args, &plan, max_cost, settings)?;
    let checklists = Checklists::of(args.checklist.as_deref());
    let checklist = match &checklists {
        Checklists::OfTheRun => Value::Null,
        Checklists::File(path) => json!({"file": path, "digest": folder::digest_of(path)?}),
        Checklists::Folder(path) => json!({"folder": path, "digest": folder::digest_of_folder(path)?}),
    };
    let question = json!({"run": run, "judge": plan, "checklist": checklist});
    let folder = Arc::new(Folder::open(&args.output, &question)?);
    let account = account(&gateway, known, Arc::clone(&folder), max_cost, settings)?;
    let bench = Arc::new(Bench { source, account, plan, gateway, checklists, folder });
    let left: VecDeque<v1::EpisodeRow> =
        rows.into_iter().filter(|row| !bench.folder.done.contains(&row.episode_id)).collect();
    let before = bench.folder.done.len();
    if before > 0 {
        output::note(&format!("{before} episodes have been judged before, and are left as they are"));
    }
    let local = LocalSet::new();
    let judged = local.run_until(all(Arc::clone(&bench), left, args.parallel as usize)).await;
    let spent = bench.folder.spent.saturating_add(bench.account.judging().settled);
    // What is in flight has its record before the command ends.
    let _purses = bench.account.close().await;
    report(&judged?, before, spent, &args)
}

/// Who is to judge.
async fn judge_plan(
    args: &RejudgeArgs,
    source: &Source,
    rows: &[v1::EpisodeRow],
    settings: &Settings,
) -> Result<JudgePlan, CliError> {
    let of_terms = |terms: &JudgeTerms| super::run::judge_plan(terms, settings);
    let plan = match args.judge.as_ref().and_then(|judge| judge.0.as_ref()) {
        Some(terms) => of_terms(terms)?,
        None => match (case::judge_of(source, rows).await?, super::run::usual_judge(settings)?) {
            (Some(plan), _) => plan,
            (None, Some(terms)) => of_terms(&terms)?,
            (None, None) => {
                let message = "nobody is named to judge, and nobody judged the run: use --judge ENDPOINT:MODEL";
                return Err(CliError::Usage(message.to_owned()));
            }
        },
    };
    Ok(JudgePlan { judges: args.judges.unwrap_or(plan.judges), ..plan })
}

/// The endpoint and price of the judge, with the keys that it needs.
fn gateway_plan(
    args: &RejudgeArgs,
    plan: &JudgePlan,
    max_cost: Option<Money>,
    settings: &Settings,
) -> Result<(GatewayPlan, Keys), CliError> {
    let mut terms = ModelTerms { judge: Some(plan.clone()), ..ModelTerms::default() };
    terms.budgets.judge = max_cost;
    let prices = prices::table(args.prices.as_deref(), settings)?;
    let planned = benchmark::gateway(&[], &terms, &Limits::default(), &settings.endpoint, &prices, false);
    let (gateway, warnings) = planned.map_err(|error| CliError::Plan(Box::new(error)))?;
    for warning in warnings {
        output::note(&output::escape(&format!("warning: {warning}")));
    }
    let mut gateway = gateway.unwrap_or_default();
    for endpoint in &mut gateway.endpoints {
        // This process connects itself: there is no coordinator in between.
        endpoint.relay = false;
    }
    let (keys, missing) = secrets::of_run(Some(&gateway));
    if let Some(MissingKey { endpoint, variable }) = missing.into_iter().next() {
        return Err(CliError::NoKey { endpoint, variable });
    }
    Ok((gateway, keys))
}

/// An account whose money is the command's, and whose calls are written to its folder.
fn account(
    plan: &GatewayPlan,
    keys: Keys,
    folder: Arc<Folder>,
    max_cost: Option<Money>,
    settings: &Settings,
) -> Result<Account, CliError> {
    let variables = settings.proxy.variables(|name| std::env::var(name).ok());
    let proxy = |name: &str| variables.get(name).cloned().unwrap_or_default();
    let proxies = Proxies { https: proxy("https_proxy"), http: proxy("http_proxy"), none: proxy("no_proxy") };
    let extra_roots = bases::certificate_files(&settings.base)?;
    let seed = rand::rngs::OsRng.try_next_u64().unwrap_or_default();
    let config = GatewayConfig { proxies, extra_roots, ..GatewayConfig::new(Arc::new(SystemClock), seed) };
    let gateway = Gateway::new(config, Arc::new(keys)).map_err(|error| CliError::Machine(Box::new(error)))?;
    let gateway = Arc::new(gateway);
    let (told, named) = (Arc::clone(&gateway), plan.clone());
    // For as long as the command runs.
    tokio::spawn(async move { replicas::follow(&named, |files| told.set_replicas(files)).await });
    let left = max_cost.map(|cap| cap.saturating_sub(folder.spent));
    Ok(gateway.open(Opening {
        plan: Arc::new(plan.clone()),
        allowed: Vec::new(),
        capped: max_cost.is_some(),
        bank: Arc::new(Capped { left }),
        journal: folder,
        max_tokens: None,
        token: String::new(),
    }))
}

/// Judges them, so many at once, until all are done or a signal comes.
async fn all(bench: Arc<Bench>, mut left: VecDeque<v1::EpisodeRow>, parallel: usize) -> Result<Vec<Judged>, CliError> {
    let mut signals = Signals::new().map_err(|error| CliError::Machine(Box::new(error)))?;
    let mut running = tokio::task::JoinSet::new();
    let mut judged = Vec::new();
    let total = left.len();
    loop {
        while running.len() < parallel
            && let Some(row) = left.pop_front()
        {
            running.spawn_local(one(Arc::clone(&bench), row));
        }
        tokio::select! {
            ended = running.join_next() => match ended {
                None => return Ok(judged),
                Some(ended) => {
                    judged.push(ended.map_err(|error| CliError::Machine(Box::new(error)))??);
                    tracing::info!(judged = judged.len(), total, "judging");
                }
            },
            () = signals.next() => return Err(CliError::Interrupted),
        }
    }
}

/// Judges one, and keeps what came of it. Only a folder that cannot be written stops the others:
/// what is in flight is paid for, and an episode that cannot be read says nothing of the next.
async fn one(bench: Arc<Bench>, row: v1::EpisodeRow) -> Result<Judged, CliError> {
    let opinion = match case::read(&bench.source, &row, &bench.checklists).await {
        Ok(Ok(case)) => judge(&bench, &case).await,
        Ok(Err(reason)) => {
            let settlement = show::settlement(&row)?;
            return Ok(Judged { row, settlement, opinion: Err(reason), failed: false });
        }
        Err(error) => Err(chain(&error)),
    };
    // What cannot be read is among the reasons by now.
    let settlement = show::settlement(&row).ok().flatten();
    let judged = Judged { row, settlement, failed: opinion.is_err(), opinion };
    let mut line = judged.json();
    line["made"] = made(&bench);
    bench.folder.keep(&line)?;
    Ok(judged)
}

/// How a verdict was made, beside what the folder says of the judge and the store of the trajectory.
fn made(bench: &Bench) -> Value {
    let prices = serde_json::to_vec(&bench.gateway.prices).map(|bytes| Digest::of(&bytes)).ok();
    json!({
        "at": jiff::Timestamp::now().as_millisecond(),
        "version": env!("CARGO_PKG_VERSION"),
        "prices": prices,
        "prices_of": bench.gateway.prices_of,
    })
}

async fn judge(bench: &Bench, case: &Case) -> Result<Opinion, String> {
    let judge = Judge::new(&bench.account, &bench.plan, &bench.gateway, case.size);
    let judge = judge.map_err(|error| error.to_string())?;
    let load = |index: usize| async move {
        let digest = case.screens.get(index).ok_or("it is not there")?;
        let bytes = reading::blob(&bench.source, digest, "a screenshot").await.map_err(|error| error.to_string())?;
        Ok(Arc::from(bytes))
    };
    let mut said: BTreeMap<u32, Judgement> = BTreeMap::new();
    for Asked { number, description, rubric, screen } in &case.asked {
        let shown = case.screens.get(*screen..=*screen).unwrap_or_default();
        let judged = judge.judge(description, rubric, shown, |_| load(*screen)).await;
        let judged = judged.map_err(|error: JudgeError| format!("round {number}: {error}"))?;
        let shown = vec![u32::try_from(*screen).unwrap_or(u32::MAX)];
        said.insert(*number, Judgement { shown, ..judged });
    }
    let rounds = case.rounds.as_ref().map(|(plan, results)| judged_again(plan, results, &said)).unwrap_or_default();
    let judgement = match &case.rubric {
        Some(rubric) => {
            let judged = judge.judge(&case.description, rubric, &case.screens, load).await;
            Some(judged.map_err(|error| error.to_string())?)
        }
        None => None,
    };
    Ok(Opinion { judgement, rounds })
}

/// Says what came of it; so many had been judged before.
fn report(judged: &[Judged], before: usize, spent: Money, args: &RejudgeArgs) -> Result<(), CliError> {
    let mut judged: Vec<&Judged> = judged.iter().collect();
    judged.sort_by_key(|one| index(&one.row));
    let (agree, both) = agreement(&judged);
    let count = judged.iter().filter(|one| one.opinion.is_ok()).count();
    match args.format {
        Format::Json => output::json(&json!({
            "folder": args.output,
            "spent_dollars": show::dollars(spent),
            "judged": count,
            "judged_before": before,
            "agree": agree,
            "comparable": both,
            "episodes": judged.iter().map(|one| one.json()).collect::<Vec<_>>(),
        })),
        Format::Human => {
            let mut table = Table::new(&["#", "task", "agent", "settled as", "score", "judged", "score", "why"]);
            for one in &judged {
                let before = match &one.settlement {
                    Some(Settlement::Verdict(Verdict { score, .. })) => show::score(*score),
                    _ => String::new(),
                };
                let (word, score, why) = match &one.opinion {
                    Ok(opinion) => (show::word(opinion.passed()), show::score(opinion.score()), opinion.why()),
                    Err(reason) => ("not judged", String::new(), reason.clone()),
                };
                table.row([
                    (index(&one.row).to_string(), Tone::Dim),
                    (one.row.task.clone(), Tone::Plain),
                    (cut(&one.row.agent, 24), Tone::Plain),
                    (one.row.state.clone(), show::tone(&one.row.state)),
                    (before, Tone::Plain),
                    (word.to_owned(), show::tone(word)),
                    (score, Tone::Plain),
                    (cut(why.lines().next().unwrap_or_default(), REASON_WIDTH), Tone::Dim),
                ]);
            }
            let earlier = if before > 0 { format!(", and {before} before") } else { String::new() };
            output::data(&format!(
                "{}\njudged {count} of {}{earlier}; of {both} that had a verdict {agree} have the same now; spent {}\n\
                 kept in {}\n",
                table.render(output::stdout_colours()),
                judged.len(),
                show::cents(spent),
                args.output.display()
            ))
        }
    }
    .map_err(CliError::Output)?;
    match unjudged(&judged, before) {
        0 => Ok(()),
        failed => Err(CliError::NotJudged { failed, episodes: judged.len() }),
    }
}

/// How many could not be judged. Episodes in which there is nothing to judge are none of them,
/// unless there is nothing else.
fn unjudged(judged: &[&Judged], before: usize) -> usize {
    let any = before > 0 || judged.iter().any(|one| one.opinion.is_ok());
    if any { judged.iter().filter(|one| one.failed).count() } else { judged.len() }
}

fn index(row: &v1::EpisodeRow) -> u32 {
    row.episode_id.rsplit('/').next().and_then(|index| index.parse().ok()).unwrap_or_default()
}

/// How many come to the same as before, of those that had a verdict and have one now.
fn agreement(judged: &[&Judged]) -> (usize, usize) {
    let pairs = judged.iter().filter_map(|one| match (&one.settlement, &one.opinion) {
        (Some(Settlement::Verdict(verdict)), Ok(opinion)) => Some(verdict.passed == opinion.passed()),
        _ => None,
    });
    pairs.fold((0, 0), |(agree, both), same| (agree + usize::from(same), both + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_nothing_to_judge_is_a_failure_only_where_there_is_nothing_else() {
        let one = |reason: &str, failed| Judged {
            row: v1::EpisodeRow::default(),
            settlement: None,
            opinion: Err(reason.to_owned()),
            failed,
        };
        let (skipped, broken) = (one("it is not settled", false), one("a blob is gone", true));
        assert_eq!(unjudged(&[], 0), 0);
        assert_eq!(unjudged(&[&skipped], 3), 0);
        assert_eq!(unjudged(&[&skipped], 0), 1);
        assert_eq!(unjudged(&[&skipped, &broken], 3), 1);
        assert_eq!(unjudged(&[&skipped, &broken], 0), 2);
    }
}
