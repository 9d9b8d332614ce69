//! `longhaul status`: workers, runs, and what is live.

use longhaul_core::time::Millis;
use longhaul_proto::v1;
use serde_json::json;

use crate::cli::StatusArgs;
use crate::client::Source;
use crate::error::CliError;
use crate::output::{self, Format, Table, Tone};
use crate::settings::Settings;
use crate::{show, units};

/// Shows the state of a coordinator or a store.
///
/// # Errors
///
/// It cannot be read.
pub async fn status(args: StatusArgs, settings: &Settings) -> Result<(), CliError> {
    let source = Source::open(&args.source, settings).await?;
    let (store, workers, replicas, runs) = match &source {
        Source::Live(client) => {
            let answer = client.control.clone().status(v1::StatusRequest {}).await;
            let answer = answer.map_err(client.refused("say its status"))?.into_inner();
            (answer.store_path, Some(answer.workers), answer.replicas, source.runs().await?)
        }
        Source::Stored(reader) => (reader.path().display().to_string(), None, Vec::new(), source.runs().await?),
    };
    match args.format {
        Format::Json => output::json(&json!({
            "store": store,
            "live": workers.is_some(),
            "workers": workers.unwrap_or_default().iter().map(worker_json).collect::<Vec<_>>(),
            "replicas": replicas.iter().map(replicas_json).collect::<Vec<_>>(),
            "runs": runs.iter().map(show::run_json).collect::<Vec<_>>(),
        }))
        .map_err(CliError::Output),
        Format::Human => {
            let colours = output::stdout_colours();
            let mut text = format!("store   {}\n", output::escape_line(&store));
            match &workers {
                None => text.push_str("live    no: read from the folder\n"),
                Some(workers) => {
                    text.extend(["live    ", &source.place(), "\n\n"]);
                    text.push_str(&workers_table(workers, colours));
                    text.push_str(&replicas_table(&replicas, colours));
                }
            }
            text.push('\n');
            text.push_str(&show::runs_table(&runs, colours));
            output::data(&text).map_err(CliError::Output)
        }
    }
}

fn workers_table(workers: &[v1::WorkerRow], colours: bool) -> String {
    if workers.is_empty() {
        return "no worker is there; `longhaul worker --coordinator ACCESS` starts one\n".to_owned();
    }
    let mut table = Table::new(&["worker", "node", "state", "live", "cpus", "memory", "job"]);
    for worker in workers {
        let heard = units::show_duration(Millis(worker.last_seen_millis_ago));
        let (state, tone) = if worker.connected {
            (format!("heard {heard} ago"), Tone::Good)
        } else {
            ("cut off".to_owned(), Tone::Warn)
        };
        table.row([
            (worker.worker_id.clone(), Tone::Plain),
            (worker.hostname.clone(), Tone::Plain),
            (state, tone),
            (worker.live.to_string(), Tone::Plain),
            (format!("{}.{}", worker.cpu_millis / 1000, worker.cpu_millis % 1000 / 100), Tone::Plain),
            (units::show_size(worker.memory_mib.saturating_mul(1 << 20)), Tone::Plain),
            (worker.slurm_job_id.clone(), Tone::Plain),
        ]);
    }
    let mut text = table.render(colours);
    let live: Vec<_> = workers.iter().flat_map(|worker| &worker.attempts).collect();
    if !live.is_empty() {
        let mut table = Table::new(&["attempt", "task", "phase", "steps", "why"]);
        for attempt in live {
            table.row([
                (attempt.attempt.clone(), Tone::Plain),
                (attempt.task.clone(), Tone::Plain),
                (show::phase(attempt).to_owned(), Tone::Plain),
                (attempt.steps.to_string(), Tone::Plain),
                (show::waits(&attempt.waiting, attempt.waiting_since_millis).unwrap_or_default(), Tone::Warn),
            ]);
        }
        text.push('\n');
        text.push_str(&table.render(colours));
    }
    text
}

/// Where the servers of models are that come and go, by the files that say so.
fn replicas_table(replicas: &[v1::ReplicasRow], colours: bool) -> String {
    if replicas.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["replicas file", "addresses", ""]);
    for row in replicas {
        let addresses = if row.urls.is_empty() { "none".to_owned() } else { row.urls.join(" ") };
        table.row([
            (row.path.clone(), Tone::Plain),
            (addresses, if row.urls.is_empty() { Tone::Warn } else { Tone::Plain }),
            (row.problem.clone(), Tone::Warn),
        ]);
    }
    format!("\n{}", table.render(colours))
}

fn replicas_json(row: &v1::ReplicasRow) -> serde_json::Value {
    json!({
        "file": row.path,
        "addresses": row.urls,
        "problem": Some(&row.problem).filter(|problem| !problem.is_empty()),
    })
}

fn worker_json(worker: &v1::WorkerRow) -> serde_json::Value {
    json!({
        "worker": worker.worker_id,
        "node": worker.hostname,
        "connected": worker.connected,
        "cpu_millis": worker.cpu_millis,
        "memory_mib": worker.memory_mib,
        "last_seen_millis_ago": worker.last_seen_millis_ago,
        "slurm_job": Some(&worker.slurm_job_id).filter(|job| !job.is_empty()),
        "attempts": worker.attempts.iter().map(|attempt| json!({
            "attempt": attempt.attempt,
            "task": attempt.task,
            "phase": show::phase(attempt),
            "steps": attempt.steps,
            "waiting": Some(&attempt.waiting).filter(|reason| !reason.is_empty()),
            "waiting_since_millis": Some(attempt.waiting_since_millis).filter(|since| *since > 0),
        })).collect::<Vec<_>>(),
    })
}
