//! What envs, tasks and agents of results are called: by the folders of the benchmark, as in runs of
//! ours, or not at all.

use std::collections::BTreeMap;
use std::path::Path;

use longhaul_core::ids::TaskName;
use longhaul_core::imported::LeftOut;

use super::scored::Outcome;
use super::{Found, ImportArgs, Named};
use crate::benchmark::{Benchmark, Depth, distrust};
use crate::error::CliError;

/// What is said beside the results.
pub(super) struct Names {
    benchmark: Option<Benchmark>,
    env: Option<String>,
    agent: Option<String>,
}

impl Names {
    /// Reads the benchmark, if one is named.
    pub(super) fn read(args: &ImportArgs) -> Result<Self, CliError> {
        let read = |path: &Path| Benchmark::read(path, Depth::Specs).map_err(|error| CliError::Plan(Box::new(error)));
        Ok(Self {
            benchmark: args.benchmark.as_deref().map(read).transpose()?,
            env: args.env.clone(),
            agent: args.agent.clone(),
        })
    }

    /// Names everything that was found; what cannot be named is left out.
    pub(super) fn of(&self, found: Vec<Found>) -> (Vec<Named>, Vec<LeftOut>) {
        let (mut named, mut left_out) = (Vec::new(), Vec::new());
        for one in found {
            let place = one.place.clone();
            match self.task(&one).and_then(|task| Ok((task, self.agent(&one)?))) {
                Ok((task, agent)) => named.push(Named { found: self.trusted(&task, one), task, agent, sample: 0 }),
                Err(reason) => left_out.push(LeftOut { place, reason }),
            }
        }
        number(&mut named, &mut left_out);
        (named, left_out)
    }

    fn agent(&self, found: &Found) -> Result<String, String> {
        let agent = self.agent.clone().or_else(|| found.agent.clone());
        agent.ok_or_else(|| "nothing in it says which agent it was: use --agent".to_owned())
    }

    fn task(&self, found: &Found) -> Result<TaskName, String> {
        match &self.benchmark {
            Some(benchmark) => self.of_benchmark(benchmark, found),
            None => self.of_ids(found),
        }
    }

    /// The one task of the benchmark that it can be.
    fn of_benchmark(&self, benchmark: &Benchmark, found: &Found) -> Result<TaskName, String> {
        let (env_folder, task_folder) = match &found.named {
            Some((env, task)) => (Some(env), Some(task)),
            None => (self.env.as_ref(), found.task.as_ref()),
        };
        let mut fits = Vec::new();
        for env in &benchmark.envs {
            let id = env.spec.as_ref().ok().map(|spec| spec.id.as_str());
            let is_env = match (env_folder, &found.env_id) {
                (Some(folder), _) => env.folder == *folder,
                (None, Some(wanted)) => id == Some(wanted),
                (None, None) => true,
            };
            for task in env.tasks.iter().filter(|_| is_env) {
                let id = task.state.as_ref().ok().map(|info| info.id.as_str());
                let is_task = match (task_folder, &found.task_id) {
                    (Some(folder), _) => task.folder == *folder,
                    (None, Some(wanted)) => id == Some(wanted),
                    (None, None) => false,
                };
                if is_task {
                    fits.push(TaskName { env: env.folder.clone(), task: task.folder.clone() });
                }
            }
        }
        let asked = task_folder.or(found.task_id.as_ref()).map_or("it names none", String::as_str);
        match fits.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(format!("the benchmark has no such task: {asked}")),
            many => {
                let names: Vec<String> = many.iter().map(ToString::to_string).collect();
                Err(format!("its task may be {}: say which with --env", names.join(" or ")))
            }
        }
    }

    /// By the ids alone: those are the folders' names with something before or after them.
    fn of_ids(&self, found: &Found) -> Result<TaskName, String> {
        let plain = |id: &str| id.split('@').next().unwrap_or_default().to_owned();
        let (env, task) = match &found.named {
            Some((env, task)) => (Some(env.clone()), Some(task.clone())),
            None => (
                self.env.clone().or_else(|| found.env_id.as_deref().map(|id| plain(id.trim_start_matches("example.")))),
                found.task.clone().or_else(|| found.task_id.as_deref().map(plain)),
            ),
        };
        let env = env.ok_or("nothing in it says which env its task is of: use --benchmark or --env")?;
        let task = task.ok_or("nothing in it says which task it was")?;
        format!("{env}/{task}").parse().map_err(|_| format!("`{env}/{task}` is not the name of a task"))
    }

    /// It, without a verdict that cannot be trusted.
    fn trusted(&self, task: &TaskName, mut found: Found) -> Found {
        let Outcome::Verdict(verdict) = &found.outcome else { return found };
        let by_program = super::scored::scored_by(&verdict.details).is_some_and(|mode| mode == "program");
        let distrusted = self.benchmark.as_ref().filter(|_| by_program).and_then(|from| distrust(from, task));
        if let Some(reason) = distrusted {
            let reason = format!("its program is not to be trusted, as the benchmark has it: {reason}");
            found.outcome = Outcome::none(verdict.ended_by, &reason);
        }
        found
    }
}

/// Gives each its sample: the number of its folder, or its place among those of the same task and
/// agent, by time.
fn number(named: &mut Vec<Named>, left_out: &mut Vec<LeftOut>) {
    named.sort_by(|a, b| {
        let key = |one: &Named| (one.task.clone(), one.agent.clone(), one.found.sample);
        let time = |one: &Named| one.found.started.unwrap_or(f64::INFINITY);
        key(a).cmp(&key(b)).then(time(a).total_cmp(&time(b))).then_with(|| a.found.place.cmp(&b.found.place))
    });
    let mut seen: BTreeMap<(TaskName, String, u32), String> = BTreeMap::new();
    let mut next: BTreeMap<(TaskName, String), u32> = BTreeMap::new();
    let mut kept = Vec::with_capacity(named.len());
    for mut one in named.drain(..) {
        let place = next.entry((one.task.clone(), one.agent.clone())).or_default();
        one.sample = one.found.sample.unwrap_or(*place);
        *place += 1;
        let key = (one.task.clone(), one.agent.clone(), one.sample);
        match seen.get(&key) {
            Some(other) => left_out.push(LeftOut {
                place: one.found.place,
                reason: format!("{other} is the same sample of {} by {}", one.task, one.agent),
            }),
            None => {
                seen.insert(key, one.found.place.clone());
                kept.push(one);
            }
        }
    }
    *named = kept;
}

#[cfg(test)]
mod tests {
    use longhaul_core::imported::Form;
    use longhaul_core::outcome::EndedBy;

    use super::*;

    fn found(place: &str) -> Found {
        Found {
            place: place.to_owned(),
            form: Form::GymEpisodes,
            env_id: Some("example.calc_env@0.1".to_owned()),
            task_id: Some("sum@1".to_owned()),
            task: None,
            named: None,
            agent: Some("a".to_owned()),
            sample: None,
            seed: None,
            count: 0,
            started: None,
            ended: None,
            outcome: Outcome::none(EndedBy::Unknown, "-"),
            first: None,
            steps: Vec::new(),
            logs: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn names(env: Option<&str>, agent: Option<&str>) -> Names {
        Names { benchmark: None, env: env.map(str::to_owned), agent: agent.map(str::to_owned) }
    }

    #[test]
    fn samples_are_numbered_by_time_or_as_their_folders_are() {
        let early = Found { started: Some(1.0), ..found("b") };
        let late = Found { started: Some(2.0), ..found("a") };
        let (named, left_out) = names(None, None).of(vec![late, early]);
        assert!(left_out.is_empty());
        let samples: Vec<_> = named.iter().map(|one| (one.sample, one.found.place.as_str())).collect();
        assert_eq!(samples, [(0, "b"), (1, "a")]);
        assert_eq!(named[0].task.to_string(), "calc_env/sum");

        let twice = ["x/run_4", "y/run_4"].map(|place| Found { sample: Some(4), ..found(place) });
        let (named, left_out) = names(None, Some("mine")).of(twice.to_vec());
        assert_eq!((named.len(), named[0].sample, named[0].agent.as_str()), (1, 4, "mine"));
        assert_eq!(left_out[0].reason, "x/run_4 is the same sample of calc_env/sum by mine");
    }

    #[test]
    fn what_has_no_name_is_left_out_with_the_reason() {
        let nobody = Found { agent: None, ..found("a") };
        let nowhere = Found { env_id: None, task: Some("sum".to_owned()), ..found("b") };
        let (named, left_out) = names(None, None).of(vec![nobody, nowhere.clone()]);
        assert!(named.is_empty());
        assert!(
            left_out[0].reason.ends_with("use --agent") && left_out[1].reason.ends_with("use --benchmark or --env")
        );
        let (named, _) = names(Some("other_env"), None).of(vec![nowhere]);
        assert_eq!(named[0].task.to_string(), "other_env/sum");
    }
}
