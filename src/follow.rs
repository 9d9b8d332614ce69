//! Following a run: bars on a terminal, lines elsewhere, all of it on stderr.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use longhaul_proto::v1;

use crate::client::Client;
use crate::error::CliError;
use crate::output::{self, cut, escape_line};
use crate::show;

/// The most live attempts that get a line of their own.
const LIVE_LINES: usize = 12;

/// Shows how a run goes until it has settled; answers with how it stands then.
///
/// # Errors
///
/// The coordinator refuses or goes away.
pub async fn follow(client: &Client, run: &str) -> Result<v1::RunSummary, CliError> {
    let what = "follow the run";
    let request = v1::FollowRequest { run_id: run.to_owned() };
    let mut updates = client.control.clone().follow(request).await.map_err(client.refused(what))?.into_inner();
    let mut shown: Box<dyn Shown + Send> =
        if std::io::stderr().is_terminal() { Box::new(Bars::new()) } else { Box::new(Lines::default()) };
    let mut last = None;
    while let Some(update) = updates.message().await.map_err(client.refused(what))? {
        shown.update(&update);
        let done = update.done;
        last = update.summary.or(last);
        if done {
            break;
        }
    }
    shown.finish();
    last.ok_or_else(|| CliError::Refused {
        address: client.address.clone(),
        what,
        reason: "it says nothing about it".to_owned(),
        code: tonic::Code::Internal,
    })
}

trait Shown {
    fn update(&mut self, update: &v1::RunUpdate);
    fn finish(&mut self);
}

/// A line for each thing that happens.
#[derive(Default)]
struct Lines {
    building: BTreeSet<String>,
    waiting: Vec<String>,
    warnings: BTreeSet<String>,
    phases: BTreeMap<String, String>,
}

impl Shown for Lines {
    fn update(&mut self, update: &v1::RunUpdate) {
        let building: BTreeSet<String> = update.building.iter().cloned().collect();
        for layer in building.difference(&self.building) {
            output::note(&format!("building layer: {}", escape_line(layer)));
        }
        for layer in self.building.difference(&building) {
            output::note(&format!("layer done: {}", escape_line(layer)));
        }
        self.building = building;
        if self.waiting != update.waiting {
            for reason in &update.waiting {
                output::note(&format!("waiting: {}", escape_line(reason)));
            }
            self.waiting.clone_from(&update.waiting);
        }
        for line in unsaid(&mut self.warnings, update) {
            output::note(&line);
        }
        let phases: BTreeMap<String, String> =
            update.live.iter().map(|attempt| (attempt.attempt.clone(), show::phase(attempt).to_owned())).collect();
        for attempt in &update.live {
            if self.phases.get(&attempt.attempt) != phases.get(&attempt.attempt) {
                output::note(&format!("{}: {}", escape_line(&attempt.task), show::phase(attempt)));
            }
        }
        self.phases = phases;
        let Some(summary) = &update.summary else { return };
        for row in &update.settled {
            output::note(&settled_line(row, summary));
        }
    }

    fn finish(&mut self) {}
}

/// The warnings of an update that are not among those that were said, and are from now on.
fn unsaid(said: &mut BTreeSet<String>, update: &v1::RunUpdate) -> Vec<String> {
    let new = update.warnings.iter().filter(|warning| said.insert((*warning).clone()));
    new.map(|warning| format!("warning: {}", escape_line(warning))).collect()
}

fn settled_line(row: &v1::EpisodeRow, run: &v1::RunSummary) -> String {
    let sample = if row.sample > 0 { format!(" (sample {})", row.sample) } else { String::new() };
    let money = show::money(run).map(|money| format!(", {money}")).unwrap_or_default();
    format!(
        "{}{sample}, {}: {} after {} steps  [{}/{}{money}]",
        escape_line(&row.task),
        escape_line(&row.agent),
        row.state,
        show::steps_of(row),
        show::settled(run),
        run.episodes
    )
}

/// One bar for the run, and a line for each attempt that is live.
struct Bars {
    bars: MultiProgress,
    run: ProgressBar,
    live: BTreeMap<String, ProgressBar>,
    warnings: BTreeSet<String>,
}

impl Bars {
    fn new() -> Self {
        let bars = MultiProgress::new();
        let run = bars.add(ProgressBar::new(0));
        // The templates are constants; were one wrong, the default style would do.
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len}  {elapsed}  {wide_msg}") {
            run.set_style(style);
        }
        run.enable_steady_tick(Duration::from_secs(1));
        Self { bars, run, live: BTreeMap::new(), warnings: BTreeSet::new() }
    }
}

impl Shown for Bars {
    fn update(&mut self, update: &v1::RunUpdate) {
        let Some(summary) = &update.summary else { return };
        for row in &update.settled {
            let line = output::paint(&settled_line(row, summary), show::tone(&row.state), output::stderr_colours());
            // Above the bars; a terminal that is gone shows nothing.
            let _gone = self.bars.println(line);
        }
        for line in unsaid(&mut self.warnings, update) {
            let _gone = self.bars.println(line);
        }
        self.run.set_length(u64::from(summary.episodes));
        self.run.set_position(u64::from(show::settled(summary)));
        let building = match update.building.as_slice() {
            [] => String::new(),
            layers => format!("  building {}", escape_line(&layers.join(", "))),
        };
        let waiting = match update.waiting.as_slice() {
            [] => String::new(),
            reasons => format!("  waiting: {}", escape_line(&reasons.join("; "))),
        };
        let money = show::money(summary).map(|money| format!("  {money}")).unwrap_or_default();
        self.run.set_message(format!("{}{money}{building}{waiting}", show::counts(summary)));
        let now: BTreeSet<&str> = update.live.iter().take(LIVE_LINES).map(|live| live.attempt.as_str()).collect();
        self.live.retain(|attempt, bar| {
            let stays = now.contains(attempt.as_str());
            if !stays {
                bar.finish_and_clear();
            }
            stays
        });
        for attempt in update.live.iter().take(LIVE_LINES) {
            let bar = self.live.entry(attempt.attempt.clone()).or_insert_with(|| {
                let bar = self.bars.add(ProgressBar::new_spinner());
                if let Ok(style) = ProgressStyle::with_template("  {spinner} {elapsed:>4}  {wide_msg}") {
                    bar.set_style(style);
                }
                bar.enable_steady_tick(Duration::from_millis(250));
                bar
            });
            let task = cut(&escape_line(&attempt.task), 60);
            bar.set_message(format!("{task}  {}  {} steps", show::phase(attempt), attempt.steps));
        }
    }

    fn finish(&mut self) {
        for bar in self.live.values() {
            bar.finish_and_clear();
        }
        self.run.finish_and_clear();
    }
}
