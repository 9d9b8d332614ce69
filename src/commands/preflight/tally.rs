//! What a preflight found, task by task and env by env, and what follows for a run: pure.

use longhaul_core::digest::Digest;
use longhaul_core::ids::{EpisodeId, TaskName};
use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::{Fault, FaultClass, Settlement};
use longhaul_core::time::Millis;
use serde_json::{Value, json};

use crate::benchmark::quarantine_line;

/// One try of a task's setup.
#[derive(Clone, Debug)]
pub(super) struct Start {
    pub(super) episode: EpisodeId,
    pub(super) came: Came,
    /// How many attempts it took.
    pub(super) attempts: u32,
    /// What is noted of the last one, if it said anything.
    pub(super) notes: Option<AttemptNotes>,
    /// The first frame.
    pub(super) frame: Option<Digest>,
}

/// How far it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// To the first observation.
    Up,
    /// It did not, for a fault.
    Fault(Fault),
    /// It was stopped before anybody knew.
    Unknown,
}

impl Came {
    /// Of an episode's settlement, if it has one: whatever is no fault and was not cancelled
    /// has had its first observation.
    pub(super) fn of(settlement: Option<Settlement>) -> Self {
        match settlement {
            Some(Settlement::Verdict(_) | Settlement::Unverified { .. }) => Self::Up,
            Some(Settlement::Faulted(fault)) => Self::Fault(fault),
            Some(Settlement::Cancelled | Settlement::NotStarted { .. }) | None => Self::Unknown,
        }
    }
}

/// A task with all of its starts.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    pub(super) task: TaskName,
    pub(super) starts: Vec<Start>,
    /// Whether the first frame has one colour.
    pub(super) plain_frame: bool,
}

/// A task that was not tried: its env needs what is not here.
#[derive(Clone, Debug)]
pub(super) struct Unfit {
    pub(super) task: TaskName,
    pub(super) reason: String,
}

/// What a run does best with a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// Take it.
    Take,
    /// Take it, but nobody knows whether it starts: the reason is no fault of the task.
    TakeUnknown(String),
    /// Leave it out.
    LeaveOut(String),
}

impl Tried {
    pub(super) fn up(&self) -> usize {
        self.starts.iter().filter(|start| start.came == Came::Up).count()
    }

    /// The first start that ended in a fault, preferably one of the task's own.
    pub(super) fn fault(&self) -> Option<(&Start, &Fault)> {
        let mut faults: Vec<_> = self
            .starts
            .iter()
            .filter_map(|start| match &start.came {
                Came::Fault(fault) => Some((start, fault)),
                Came::Up | Came::Unknown => None,
            })
            .collect();
        faults.sort_by_key(|(_, fault)| is_the_nodes(fault.class));
        faults.into_iter().next()
    }

    pub(super) fn advice(&self) -> Advice {
        let of = |reason: String| match self.starts.len() {
            0 | 1 => reason,
            all => format!("{} of {all} starts: {reason}", all - self.up()),
        };
        match self.fault() {
            Some((_, fault)) if is_the_nodes(fault.class) => Advice::TakeUnknown(of(in_a_line(fault))),
            Some((_, fault)) => Advice::LeaveOut(of(in_a_line(fault))),
            None if self.up() == self.starts.len() => Advice::Take,
            None => Advice::TakeUnknown(of("stopped before anybody knew".to_owned())),
        }
    }

    /// What a person should look at although the task started.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.plain_frame {
            remarks.push("the first frame has one colour: nothing is seen on it".to_owned());
        }
        for start in &self.starts {
            if start.came == Came::Up && start.attempts > 1 {
                remarks.push(format!("it took {} attempts", start.attempts));
            }
            remarks.extend(start.notes.iter().flat_map(|notes| notes.warnings.iter().cloned()));
        }
        remarks.dedup();
        remarks
    }

    fn times(&self, of: impl Fn(&AttemptNotes) -> Millis) -> Vec<Millis> {
        let up = self.starts.iter().filter(|start| start.came == Came::Up);
        up.filter_map(|start| start.notes.as_ref()).map(of).collect()
    }
}

/// Faults that say nothing of the task. A worker that was lost is not among them: an episode
/// is settled with that class only if it took several workers down with it.
const fn is_the_nodes(class: FaultClass) -> bool {
    match class {
        FaultClass::NodeDisk | FaultClass::Store | FaultClass::Preempted => true,
        FaultClass::WorkerLost
        | FaultClass::LayerBuild
        | FaultClass::SandboxStart
        | FaultClass::SetupHook
        | FaultClass::Display
        | FaultClass::Memory
        | FaultClass::AgentCrashed
        | FaultClass::ModelEndpoint
        | FaultClass::Verifier
        | FaultClass::Judge
        | FaultClass::ReplayDiverged => false,
    }
}

/// A fault as its class and the first line of its message.
pub(super) fn in_a_line(fault: &Fault) -> String {
    format!("{}: {}", fault.class, fault.message.lines().next().unwrap_or_default())
}

/// An env: how many of its tasks started, and how long that took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EnvTally {
    pub(super) env: String,
    pub(super) tasks: usize,
    /// Tasks of which every start came up.
    pub(super) started: usize,
    /// Of setup alone: hooks, and the screen at rest.
    pub(super) setup: Option<Spread>,
    /// From the sandbox's start to a display.
    pub(super) start: Option<Spread>,
}

/// Many lengths of time in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spread {
    pub(super) median: Millis,
    pub(super) longest: Millis,
}

impl Spread {
    fn of(mut times: Vec<Millis>) -> Option<Self> {
        times.sort_unstable();
        let longest = *times.last()?;
        Some(Self { median: *times.get((times.len() - 1) / 2)?, longest })
    }

    fn json(self) -> Value {
        json!({ "median_millis": self.median.0, "longest_millis": self.longest.0 })
    }
}

/// Env by env, sorted by name; tasks that were not tried count as not started.
pub(super) fn by_env(tried: &[Tried], unfit: &[Unfit]) -> Vec<EnvTally> {
    let mut envs: Vec<&str> = tried
        .iter()
        .map(|tried| &tried.task)
        .chain(unfit.iter().map(|unfit| &unfit.task))
        .map(|task| task.env.as_str())
        .collect();
    envs.sort_unstable();
    envs.dedup();
    envs.into_iter()
        .map(|env| {
            let mine: Vec<&Tried> = tried.iter().filter(|tried| tried.task.env == env).collect();
            let times =
                |of: fn(&AttemptNotes) -> Millis| Spread::of(mine.iter().flat_map(|tried| tried.times(of)).collect());
            EnvTally {
                env: env.to_owned(),
                tasks: mine.len() + unfit.iter().filter(|unfit| unfit.task.env == env).count(),
                started: mine.iter().filter(|tried| tried.up() == tried.starts.len()).count(),
                setup: times(|notes| notes.setup_time),
                start: times(|notes| notes.start_time),
            }
        })
        .collect()
}

/// The list of tasks that a run had best leave out, with `head` above it.
pub(super) fn quarantine(head: &[String], tried: &[Tried], unfit: &[Unfit]) -> (String, usize) {
    let mut lines: Vec<String> = head.iter().map(|line| format!("# {line}").replace(char::is_control, " ")).collect();
    let mut count = 0;
    for tried in tried {
        match tried.advice() {
            Advice::Take => {}
            Advice::LeaveOut(reason) => {
                count += 1;
                lines.push(quarantine_line(&tried.task, &reason));
            }
            Advice::TakeUnknown(reason) => {
                let line = format!("# not known, and not left out: {}  # {reason}", tried.task);
                lines.push(line.replace(char::is_control, " "));
            }
        }
    }
    for unfit in unfit {
        count += 1;
        lines.push(quarantine_line(&unfit.task, &format!("unfit: {}", unfit.reason)));
    }
    lines.push(String::new());
    (lines.join("\n"), count)
}

/// All of it for programs.
pub(super) fn json(tried: &[Tried], unfit: &[Unfit]) -> Value {
    let envs: Vec<_> = by_env(tried, unfit)
        .into_iter()
        .map(|env| {
            json!({
                "env": env.env,
                "tasks": env.tasks,
                "started": env.started,
                "start": env.start.map(Spread::json),
                "setup": env.setup.map(Spread::json),
            })
        })
        .collect();
    let tasks: Vec<_> = tried.iter().map(task_json).collect();
    let unfit: Vec<_> = unfit.iter().map(|unfit| json!({ "task": unfit.task, "reason": unfit.reason })).collect();
    json!({ "envs": envs, "tasks": tasks, "unfit": unfit })
}

fn task_json(tried: &Tried) -> Value {
    let starts: Vec<_> = tried
        .starts
        .iter()
        .map(|start| {
            let (came, fault) = match &start.came {
                Came::Up => ("started", None),
                Came::Fault(fault) => ("faulted", Some(fault)),
                Came::Unknown => ("unknown", None),
            };
            json!({
                "episode": start.episode,
                "came": came,
                "fault": fault,
                "attempts": start.attempts,
                "layers_millis": start.notes.as_ref().map(|notes| notes.layers_time.0),
                "start_millis": start.notes.as_ref().map(|notes| notes.start_time.0),
                "setup_millis": start.notes.as_ref().map(|notes| notes.setup_time.0),
                "peak_memory_mib": start.notes.as_ref().map(|notes| notes.peak_memory_mib),
                "frame": start.frame,
            })
        })
        .collect();
    json!({
        "task": tried.task,
        "started": tried.up(),
        "starts": starts,
        "remarks": tried.remarks(),
        "quarantined": matches!(tried.advice(), Advice::LeaveOut(_)),
    })
}

#[cfg(test)]
mod tests {
    use longhaul_core::ids::RunId;
    use longhaul_core::time::Timestamp;

    use super::*;
    use crate::benchmark::parse_quarantine;

    fn start(came: Came, setup: u64) -> Start {
        let notes = AttemptNotes { setup_time: Millis(setup), ..AttemptNotes::default() };
        let episode = EpisodeId { run: RunId::new(Timestamp(1), 1), index: 0 };
        Start { episode, came, attempts: 1, notes: Some(notes), frame: None }
    }

    fn fault(class: FaultClass, message: &str) -> Came {
        Came::Fault(Fault { class, message: message.to_owned(), log_tail: None })
    }

    fn tried(task: &str, starts: Vec<Start>) -> Tried {
        Tried { task: task.parse().unwrap(), starts, plain_frame: false }
    }

    fn some() -> (Vec<Tried>, Vec<Unfit>) {
        let tried = vec![
            tried("b/good", vec![start(Came::Up, 5), start(Came::Up, 1)]),
            tried("b/flaky", vec![start(Came::Up, 3), start(fault(FaultClass::SetupHook, "it hung\nfor ever"), 9)]),
            tried("a/disk", vec![start(fault(FaultClass::NodeDisk, "full"), 9)]),
            tried("a/open", vec![start(Came::Unknown, 9)]),
        ];
        let unfit = Unfit { task: "c/docker".parse().unwrap(), reason: "it needs docker\n(x)".to_owned() };
        (tried, vec![unfit])
    }

    #[test]
    fn envs_count_tasks_whose_every_start_came_up_and_time_only_those_starts() {
        let (tried, unfit) = some();
        let tallies = by_env(&tried, &unfit);
        let counts: Vec<_> = tallies.iter().map(|env| (env.env.as_str(), env.started, env.tasks)).collect();
        assert_eq!(counts, [("a", 0, 2), ("b", 1, 2), ("c", 0, 1)]);
        assert_eq!(tallies[0].setup, None);
        assert_eq!(tallies[1].setup, Some(Spread { median: Millis(3), longest: Millis(5) }));
    }

    #[test]
    fn what_is_the_tasks_fault_is_listed_and_what_is_the_nodes_is_only_remarked() {
        let (tried, unfit) = some();
        let (text, count) = quarantine(&["by \u{1b}hand".to_owned()], &tried, &unfit);
        let expected = "# by  hand\n\
            b/flaky  # 1 of 2 starts: setup_hook: it hung\n\
            # not known, and not left out: a/disk  # node_disk: full\n\
            # not known, and not left out: a/open  # stopped before anybody knew\n\
            c/docker  # unfit: it needs docker (x)\n";
        assert_eq!((text.as_str(), count), (expected, 2));
        let names: Vec<String> = parse_quarantine(&text).unwrap().into_keys().map(|task| task.to_string()).collect();
        assert_eq!(names, ["b/flaky", "c/docker"]);
    }

    #[test]
    fn a_fault_of_the_tasks_own_is_told_before_one_of_the_node() {
        let starts = vec![start(fault(FaultClass::NodeDisk, "full"), 0), start(fault(FaultClass::Memory, "2 GiB"), 0)];
        assert_eq!(tried("a/b", starts).advice(), Advice::LeaveOut("2 of 2 starts: memory: 2 GiB".to_owned()));
    }
}
