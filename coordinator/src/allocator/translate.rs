//! What Slurm says, in the engine's words. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_core::time::{Millis, Timestamp};
use longhaul_engine::{JobEnd, JobId, JobPhase, JobSeen, PartitionOffer, Token};
use longhaul_slurm::{ClusterConfig, JobRef, JobState, JobView, Life, Member, Memory, NodeState, Partition};

use super::{Brief, PoolConfig};

/// Slurm's number of a job, if it is one.
pub(super) fn slurm_id(job: &JobId) -> Option<longhaul_slurm::JobId> {
    job.0.parse().ok().map(longhaul_slurm::JobId)
}

/// A job of the queue; nothing if it is none of the submissions that are known.
pub(super) fn job(view: &JobView, brief: &Brief) -> Option<JobSeen> {
    let token = view.token.as_ref()?.to_string();
    let tasks = tasks(&view.member, &token, brief)?;
    let phase = match &view.state {
        JobState::Pending | JobState::Requeued | JobState::RequeueHeld => {
            JobPhase::Pending { reason: view.reason.clone().unwrap_or_default() }
        }
        JobState::Configuring | JobState::Running | JobState::Suspended => JobPhase::Running {
            node: view.nodes.clone(),
            started_at: view.start.map(instant),
            ends_at: view.end.filter(|_| view.time_limit.is_some()).map(instant),
        },
        // It runs on another cluster of a federation, or waits there: this one knows nothing of it.
        JobState::Revoked => return None,
        // A state that is not known says only that it is there.
        JobState::Completing | JobState::Other(_) => JobPhase::Completing,
        ended => JobPhase::Ended(end(ended)?),
    };
    Some(JobSeen { token: Token(token), job: JobId(view.id.to_string()), tasks, restarts: view.restarts, phase })
}

/// What the accounting says of jobs that the queue lacks: how the last life of each ended. An
/// earlier one was followed by another, whatever it ended with.
pub(super) fn lives(lives: &[Life], brief: &Brief) -> Vec<JobSeen> {
    let is_last = |life: &&Life| {
        let same = |other: &&Life| other.token == life.token && other.id == life.id && other.member == life.member;
        lives.iter().filter(same).all(|other| other.submitted <= life.submitted)
    };
    lives.iter().filter(is_last).filter_map(|last| life(last, brief)).collect()
}

fn life(life: &Life, brief: &Brief) -> Option<JobSeen> {
    let token = life.token.as_ref()?.to_string();
    let tasks = tasks(&life.member, &token, brief)?;
    let phase = JobPhase::Ended(end(&life.state)?);
    let restarts = brief.submissions.get(&token)?.restarts(&tasks);
    Some(JobSeen { token: Token(token), job: JobId(life.id.to_string()), tasks, restarts, phase })
}

fn tasks(member: &Member, token: &str, brief: &Brief) -> Option<Vec<u32>> {
    let known = brief.submissions.get(token)?;
    match member {
        Member::Element(index) => Some(vec![*index]),
        Member::Rest(indices) => Some(indices.iter().collect()),
        // The rest of an array of which Slurm does not say any more what is in it: no news.
        Member::Whole => (known.count == 1).then(|| vec![0]),
    }
}

fn end(state: &JobState) -> Option<JobEnd> {
    Some(match state {
        JobState::Completed => JobEnd::Completed,
        JobState::Failed => JobEnd::Failed,
        JobState::OutOfMemory => JobEnd::OutOfMemory,
        JobState::Timeout | JobState::Deadline => JobEnd::TimedOut,
        JobState::Preempted => JobEnd::Preempted,
        JobState::Cancelled => JobEnd::Cancelled,
        JobState::NodeFail | JobState::BootFail => JobEnd::NodeFailed,
        _ => return None,
    })
}

fn instant(seconds: u64) -> Timestamp {
    Timestamp(seconds.saturating_mul(1000))
}

/// Tasks that should be there and that an answer of the queue lacks, as the accounting is
/// asked for them.
pub(super) fn missing(brief: &Brief, seen: &[JobSeen]) -> Vec<JobRef> {
    let shown: BTreeSet<(&str, u32)> =
        seen.iter().flat_map(|job| job.tasks.iter().map(|task| (job.token.0.as_str(), *task))).collect();
    let mut missing = Vec::new();
    for (token, known) in &brief.submissions {
        let Some(id) = known.job.as_ref().and_then(slurm_id) else { continue };
        for (task, _) in known.live.iter().filter(|(task, _)| !shown.contains(&(token.as_str(), **task))) {
            missing.push(if known.count > 1 { JobRef::element(id, *task) } else { JobRef::whole(id) });
        }
    }
    missing
}

/// What the partitions that a pool names have for its workers.
pub(super) fn offer(config: &PoolConfig, partitions: &[Partition], cluster: &ClusterConfig) -> PartitionOffer {
    let named: Vec<&str> = config.template.partition.iter().flat_map(|names| names.split(',')).collect();
    let ours = |partition: &&Partition| {
        if named.is_empty() { partition.is_default } else { named.contains(&partition.name.as_str()) }
    };
    let ours: Vec<&Partition> = partitions.iter().filter(ours).collect();
    if ours.is_empty() {
        // The cluster refuses by itself, and says why.
        return PartitionOffer::default();
    }
    let max_walltime = ours.iter().map(|partition| partition.max_time).max_by_key(|time| time.unwrap_or(Duration::MAX));
    let workers: u64 = ours
        .iter()
        .flat_map(|partition| &partition.groups)
        .filter(|group| !is_away(&group.state))
        .map(|group| u64::from(group.nodes) * per_node(config, group.cpus, group.memory_mib))
        .sum();
    PartitionOffer {
        max_walltime: max_walltime.flatten().map(|time| Millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))),
        // Where nothing fits, Slurm itself says best why.
        max_workers: Some(u32::try_from(workers).unwrap_or(u32::MAX)).filter(|workers| *workers > 0),
        max_array: cluster.max_array_size,
    }
}

/// Whether nodes in this state take no job for longer. Of the many words for it, most say that a
/// node is about to be free, or to be busy.
fn is_away(state: &NodeState) -> bool {
    const GONE: [&str; 7] = ["down", "drain", "fail", "maint", "reserved", "unknown", "error"];
    matches!(state, NodeState::Away(word) if GONE.iter().any(|gone| word.contains(gone)) || word.ends_with('*'))
}

/// How many workers of a pool a node holds.
fn per_node(config: &PoolConfig, cpus: u32, memory_mib: u64) -> u64 {
    let template = &config.template;
    if template.exclusive {
        return 1;
    }
    // What the site gives to a job that does not say is not known: one processor at least.
    let by_cpus = u64::from(cpus / template.cpus.map_or(1, std::num::NonZeroU32::get));
    match template.memory {
        Some(Memory::Node) => by_cpus.min(1),
        Some(Memory::Mib(mib)) if mib > 0 => by_cpus.min(memory_mib / mib),
        _ => by_cpus,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::num::NonZeroU32;

    use longhaul_engine::state::Capacity;
    use longhaul_engine::{Pool, PoolId};
    use longhaul_slurm::{Indices, NodeGroup, Owner, Template, WorkerCommand};

    use super::super::Known;
    use super::*;

    fn token() -> longhaul_slurm::Token {
        longhaul_slurm::Token::new(Owner::new("a").expect("a word"), 1)
    }

    fn brief(array: bool) -> Brief {
        let count = if array { 3 } else { 1 };
        let known = Known { job: Some(JobId("7".to_owned())), count, live: BTreeMap::from([(0, 0), (1, 2), (2, 0)]) };
        Brief { mark: 4, submissions: BTreeMap::from([(token().to_string(), known)]) }
    }

    fn view(member: Member, state: JobState) -> JobView {
        JobView {
            id: longhaul_slurm::JobId(7),
            member,
            raw_id: longhaul_slurm::JobId(9),
            token: Some(token()),
            partition: "batch".to_owned(),
            state,
            reason: Some("Resources".to_owned()),
            nodes: Some("node1".to_owned()),
            submitted: Some(1),
            start: Some(10),
            end: Some(70),
            time_limit: Some(Duration::from_secs(60)),
            restarts: 2,
        }
    }

    #[test]
    fn a_job_is_told_with_its_tasks_and_its_place_in_the_queue() {
        let rest = Member::Rest(Indices::parse("1-2").expect("indices"));
        let waiting = job(&view(rest, JobState::Pending), &brief(true)).expect("ours");
        assert_eq!((waiting.token.0.as_str(), waiting.job.0.as_str()), (token().to_string().as_str(), "7"));
        assert_eq!((waiting.tasks, waiting.restarts), (vec![1, 2], 2));
        assert_eq!(waiting.phase, JobPhase::Pending { reason: "Resources".to_owned() });

        let running = job(&view(Member::Element(1), JobState::Running), &brief(true)).expect("ours");
        let (started_at, ends_at) = (Some(Timestamp(10_000)), Some(Timestamp(70_000)));
        assert_eq!(running.phase, JobPhase::Running { node: Some("node1".to_owned()), started_at, ends_at });

        let whole = job(&view(Member::Whole, JobState::Timeout), &brief(false)).expect("ours");
        assert_eq!((whole.tasks, whole.phase), (vec![0], JobPhase::Ended(JobEnd::TimedOut)));
    }

    #[test]
    fn what_says_nothing_about_our_allocations_is_passed_over() {
        assert_eq!(job(&view(Member::Whole, JobState::Cancelled), &brief(true)), None, "no tasks are named");
        assert_eq!(job(&JobView { token: None, ..view(Member::Whole, JobState::Running) }, &brief(false)), None);
        assert_eq!(job(&view(Member::Element(0), JobState::Revoked), &brief(true)), None, "it is on another cluster");
        let nothing = Brief { mark: 0, submissions: BTreeMap::new() };
        assert_eq!(job(&view(Member::Element(0), JobState::Running), &nothing), None);
        let strange = job(&view(Member::Element(0), JobState::Other("NEW".to_owned())), &brief(true)).expect("ours");
        assert_eq!(strange.phase, JobPhase::Completing, "it is there, and nothing more is said");
    }

    #[test]
    fn the_accounting_is_asked_for_what_the_queue_lacks_and_only_a_last_life_is_an_end() {
        let seen = job(&view(Member::Element(0), JobState::Running), &brief(true)).expect("ours");
        let id = longhaul_slurm::JobId(7);
        assert_eq!(missing(&brief(true), &[seen]), [JobRef::element(id, 1), JobRef::element(id, 2)]);

        let past = |state, submitted| Life {
            id,
            member: Member::Element(1),
            raw_id: id,
            token: Some(token()),
            state,
            exit_code: 0,
            signal: 0,
            reason: None,
            nodes: None,
            submitted: Some(submitted),
            start: None,
            end: None,
        };
        let (failed, again) = (past(JobState::NodeFail, 1), past(JobState::Running, 2));
        assert_eq!(lives(&[failed.clone(), again], &brief(true)), [], "it was started anew");
        let ended = lives(&[past(JobState::Requeued, 0), failed], &brief(true));
        assert_eq!(ended.len(), 1);
        assert_eq!((ended[0].tasks.as_slice(), ended[0].restarts), (&[1][..], 2));
        assert_eq!(ended[0].phase, JobPhase::Ended(JobEnd::NodeFailed));
    }

    #[test]
    fn a_partition_offers_what_its_usable_nodes_hold() {
        let group = |state| NodeGroup { nodes: 3, state, cpus: 16, memory_mib: 40_000, gres: None, features: vec![] };
        let partition = |name: &str, is_default| Partition {
            name: name.to_owned(),
            is_default,
            is_up: true,
            max_time: Some(Duration::from_secs(3600)),
            default_time: None,
            preempt_mode: "OFF".to_owned(),
            groups: vec![group(NodeState::Idle), group(NodeState::Away("down".to_owned()))],
        };
        let partitions = [partition("batch", true), partition("other", false)];
        let mut config = PoolConfig {
            pool: Pool {
                id: PoolId("p".to_owned()),
                token_prefix: "x".to_owned(),
                offer: Capacity { cpu_millis: 4000, memory_mib: 16_000, gpus: 0, max_slots: 0 },
                walltime: Millis(1),
                array: true,
                max_workers: 1,
                max_queued: 1,
                max_node_time: None,
                idle: Millis(1),
                max_failures: 1,
            },
            template: Template { cpus: NonZeroU32::new(4), memory: Some(Memory::Mib(16_000)), ..Template::default() },
            worker: WorkerCommand { program: "/x".into(), args: vec![] },
        };
        let workers = |config: &PoolConfig| offer(config, &partitions, &ClusterConfig::default()).max_workers;
        assert_eq!(workers(&config), Some(6), "by memory, two on each of three nodes");
        config.template.exclusive = true;
        assert_eq!(workers(&config), Some(3));
        config.template.partition = Some("batch,other".to_owned());
        assert_eq!(workers(&config), Some(6));
        config.template.memory = Some(Memory::Mib(50_000));
        config.template.exclusive = false;
        assert_eq!(workers(&config), None, "what fits on no node is refused by Slurm, which says why");
        config.template.partition = Some("nowhere".to_owned());
        assert_eq!(workers(&config), None, "the site says itself what is wrong");
        config.template.partition = None;
        let max_walltime = offer(&config, &partitions, &ClusterConfig::default()).max_walltime;
        assert_eq!(max_walltime, Some(Millis::from_secs(3600)));
    }
}
