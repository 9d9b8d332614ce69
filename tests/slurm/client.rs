//! What is asked of a real Slurm of four nodes, and what it answers when things go wrong.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use longhaul_slurm::{
    Accounting, Allocation, AllocationRequest, Client, Failure, JobRef, JobState, JobView, Limits, Member, Memory,
    Owner, Rejection, Shape, SubmitError, System, Template, Token, Which, WorkerCommand, script,
};
use longhaul_tests::slurm::{Cluster, Options, until};

/// A worker that writes down what it finds, and how it is told to end.
const WORKER: &str = "me=$1/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}; \
    trap 'echo TERM >\"$me.end\"; exit 0' TERM; \
    env >\"$me.new\" && mv \"$me.new\" \"$me.env\"; \
    while :; do sleep 1 & wait; done";

/// One that ends by itself.
const BRIEF: &str = "exit 3";

fn owner() -> Result<Owner> {
    Ok(Owner::new("test")?)
}

fn token(serial: u64) -> Result<Token> {
    Ok(Token::new(owner()?, serial))
}

fn template() -> Template {
    Template {
        partition: Some("batch".to_owned()),
        cpus: NonZeroU32::new(2),
        memory: Some(Memory::Mib(500)),
        ..Template::default()
    }
}

fn request(cluster: &Cluster, serial: u64, shape: Shape, worker: &str) -> Result<AllocationRequest> {
    let args = ["-c", worker, "worker", &cluster.shared().display().to_string()].map(str::to_owned).to_vec();
    Ok(AllocationRequest {
        token: token(serial)?,
        shape,
        worker: WorkerCommand { program: PathBuf::from("/bin/bash"), args },
    })
}

fn array(tasks: u32, at_once: u32) -> Result<Shape> {
    Ok(Shape::Array { tasks: NonZeroU32::new(tasks).context("zero")?, at_once: NonZeroU32::new(at_once) })
}

/// What a worker found in its environment, once it is there.
fn found(cluster: &Cluster, job: &JobView) -> Result<Option<Allocation>> {
    let path = cluster.shared().join(format!("{}.{}.env", job.raw_id, job.restarts));
    let Ok(text) = std::fs::read_to_string(path) else { return Ok(None) };
    let variables: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    Ok(Allocation::parse(|name| variables.get(name).map(|value| (*value).to_owned()))?)
}

/// Waits until the one job of a token is as it should be.
async fn one(client: &Client<System>, token: &Token, what: &str, is: impl Fn(&JobView) -> bool) -> Result<JobView> {
    until(what, async || match client.find(token).await?.as_slice() {
        [job] if is(job) => Ok(Some(job.clone())),
        [] | [_] => Ok(None),
        several => bail!("{token} is {several:?}"),
    })
    .await
}

/// Waits until as many jobs of a token as that are as they should be.
async fn some(
    client: &Client<System>,
    token: &Token,
    count: usize,
    what: &str,
    is: impl Fn(&JobView) -> bool,
) -> Result<Vec<JobView>> {
    until(what, async || {
        let jobs: Vec<_> = client.queue().await?.of(token).filter(|job| is(job)).cloned().collect();
        Ok((jobs.len() == count).then_some(jobs))
    })
    .await
}

fn runs(job: &JobView) -> bool {
    job.state == JobState::Running
}

#[tokio::test]
async fn allocations_are_asked_for_seen_and_cancelled() -> Result<()> {
    let conf = "PartitionName=hidden Nodes=ALL Hidden=YES MaxTime=INFINITE\n";
    let cluster = Cluster::up(&Options { conf, ..Options::default() })?;
    let client = cluster.client(Limits::default()).await?;

    // What there is.
    let config = client.config().await?;
    assert_eq!((config.kill_wait, config.accounting), (Some(Duration::from_secs(5)), Some(false)));
    let partitions = client.partitions().await?;
    let batch = partitions.iter().find(|partition| partition.name == "batch").context("no partition")?;
    assert!(batch.is_default && batch.is_up);
    assert_eq!((batch.usable_nodes(), batch.groups[0].cpus, batch.groups[0].memory_mib), (4, 16, 32_000));

    // What would be accepted, and what not.
    let single = script(&template(), &request(&cluster, 1, Shape::Single, WORKER)?)?;
    let several = script(&template(), &request(&cluster, 2, array(6, 2)?, WORKER)?)?;
    for text in [&single, &several] {
        assert!(client.test_only(text).await?.start.is_some());
    }
    let wrong = Template { partition: Some("nowhere".to_owned()), ..template() };
    let wrong = script(&wrong, &request(&cluster, 3, Shape::Single, WORKER)?)?;
    let refused = client.test_only(&wrong).await;
    assert!(matches!(refused, Err(Failure::Rejected { rejection: Rejection::Partition, .. })), "{refused:?}");
    let large = Template { memory: Some(Memory::Mib(1 << 20)), ..template() };
    let refused = client.submit(&script(&large, &request(&cluster, 3, Shape::Single, WORKER)?)?).await;
    assert!(
        matches!(refused, Err(SubmitError::No(Failure::Rejected { rejection: Rejection::Nodes, .. }))),
        "{refused:?}"
    );
    // All that may be left of it is a record that says why.
    assert!(client.find(&token(3)?).await?.iter().all(|job| job.state == JobState::Failed));

    // Somebody's job whose name is an attack.
    let hostile = "--job-name=1~1~N/A~\n\u{1}2|3|'\"%x";
    let mut neighbour = cluster.command(Path::new("sbatch"));
    neighbour.args([hostile, "--comment=~\n~", "--output=/dev/null", "--wrap=sleep 1000"]).current_dir("/");
    ensure!(neighbour.output()?.status.success(), "no hostile job");

    // They come to run.
    let id = client.submit(&single).await?;
    let first = one(&client, &token(1)?, "the single job to run", runs).await?;
    assert_eq!((first.id, first.raw_id, &first.member, first.restarts), (id, id, &Member::Whole, 0));
    assert_eq!(first.time_limit, Some(Duration::from_secs(3600)));
    let (start, end) = (first.start.context("no start")?, first.end.context("no end")?);
    assert_eq!(end - start, 3600);

    let id = client.submit(&several).await?;
    let elements = some(&client, &token(2)?, 2, "two elements to run", runs).await?;
    assert!(elements.iter().all(|job| job.id == id && matches!(job.member, Member::Element(_))));
    let queue = client.queue().await?;
    let rest = queue.of(&token(2)?).find(|job| !runs(job)).context("no rest of the array")?;
    let Member::Rest(indices) = &rest.member else { bail!("{rest:?}") };
    assert_eq!((rest.count(), indices.at_once(), &rest.state), (4, Some(2), &JobState::Pending));
    assert_eq!(rest.reason.as_deref(), Some("JobArrayTaskLimit"));
    // One of the single job, two elements, the rest; and the neighbour's, which is nobody's.
    let live = |job: &&JobView| !job.state.is_ended();
    assert_eq!(queue.owned_by(&owner()?).filter(live).count(), 4);
    assert_eq!(queue.jobs.iter().filter(live).filter(|job| job.token.is_none()).count(), 1);

    // Each worker knows what it is.
    for job in elements.iter().chain([&first]) {
        let given = until("a worker's environment", async || found(&cluster, job)).await?;
        assert_eq!((given.token.as_ref(), given.restarts), (job.token.as_ref(), 0));
        assert_eq!((given.job_id, given.cpus, given.memory_mib), (job.raw_id.to_string(), Some(2), Some(500)));
        assert_eq!(given.node, job.nodes);
        let place = given.array.map(|task| (task.array_job, task.index));
        let expected = match job.member {
            Member::Element(index) => Some((job.id.to_string(), index)),
            Member::Whole | Member::Rest(_) => None,
        };
        assert_eq!(place, expected);
    }

    // There is no accounting here, which is an answer.
    assert_eq!(client.accounting(&[JobRef::whole(id)]).await?, Accounting::Off);

    // Cancelled: what waits, then one, then all.
    client.cancel(&token(2)?, Which::Waiting).await?;
    until("the rest of the array to be gone", async || {
        Ok((!client.queue().await?.of(&token(2)?).any(|job| job.state.is_waiting())).then_some(()))
    })
    .await?;
    let (gone, other) = (&elements[0], &elements[1]);
    // With an id that is not there, and one of another submission: neither is touched.
    let these = [gone.reference(), JobRef::whole(first.id), JobRef::element(id, 5000)];
    client.cancel(&token(2)?, Which::These(&these)).await?;
    some(&client, &token(2)?, 1, "one element to be cancelled", |job| {
        job.reference() == gone.reference() && job.state == JobState::Cancelled
    })
    .await?;
    some(&client, &token(2)?, 1, "the other to run", |job| job.reference() == other.reference() && runs(job)).await?;
    client.cancel(&token(2)?, Which::All).await?;
    some(&client, &token(2)?, 1, "the other to be cancelled", |job| {
        job.reference() == other.reference() && job.state == JobState::Cancelled
    })
    .await?;
    one(&client, &token(1)?, "the single job to run on", runs).await?;

    // One in a partition that the site hides: it is ours all the same.
    ensure!(partitions.iter().any(|partition| partition.name == "hidden"), "{partitions:?}");
    let hidden = Template { partition: Some("hidden".to_owned()), ..template() };
    client.submit(&script(&hidden, &request(&cluster, 5, Shape::Single, WORKER)?)?).await?;
    one(&client, &token(5)?, "the job of the hidden partition to run", runs).await?;

    // One that ends by itself, and how.
    client.submit(&script(&template(), &request(&cluster, 4, Shape::Single, BRIEF)?)?).await?;
    let ended = one(&client, &token(4)?, "the brief job to end", |job| job.state.is_ended()).await?;
    assert_eq!((ended.state, ended.reason.as_deref()), (JobState::Failed, Some("NonZeroExitCode")));
    Ok(())
}

#[tokio::test]
async fn the_end_of_an_allocation_is_announced_to_the_worker_itself() -> Result<()> {
    let cluster = Cluster::up(&Options { nodes: 1, ..Options::default() })?;
    let client = cluster.client(Limits::default()).await?;
    let template = Template { time_limit_minutes: 3, warning_seconds: 119, ..template() };
    client.submit(&script(&template, &request(&cluster, 1, Shape::Single, WORKER)?)?).await?;
    let job = one(&client, &token(1)?, "the job to run", runs).await?;
    let end = cluster.shared().join(format!("{}.0.end", job.raw_id));
    until("the warning", async || Ok(end.exists().then_some(()))).await?;
    // The worker ended by itself, so the job did: it was not killed.
    one(&client, &token(1)?, "the job to end", |job| job.state == JobState::Completed).await?;
    Ok(())
}

#[tokio::test]
async fn a_restart_and_the_loss_of_a_node_are_seen() -> Result<()> {
    let cluster = Cluster::up(&Options::default())?;
    let client = cluster.client(Limits::default()).await?;
    let kept = Template { requeue: true, exclusive: true, ..template() };
    let lost = Template { requeue: false, exclusive: true, ..template() };
    client.submit(&script(&kept, &request(&cluster, 1, Shape::Single, WORKER)?)?).await?;
    client.submit(&script(&lost, &request(&cluster, 2, Shape::Single, WORKER)?)?).await?;
    let first = one(&client, &token(1)?, "the first job to run", runs).await?;
    one(&client, &token(2)?, "the second job to run", runs).await?;

    // An administrator puts it back into the queue.
    until("the worker", async || found(&cluster, &first)).await?;
    cluster.admin(["scontrol", "requeue", &first.id.to_string()])?;
    let again = one(&client, &token(1)?, "the first job to run again", |job| runs(job) && job.restarts == 1).await?;
    assert_eq!(again.raw_id, first.raw_id);
    let given = until("the second worker", async || found(&cluster, &again)).await?;
    assert_eq!((given.token, given.restarts), (Some(token(1)?), 1));

    // Power loss of the nodes of both.
    let second = one(&client, &token(2)?, "the second job to run", runs).await?;
    let mut off = Vec::new();
    for job in [&again, &second] {
        let node = job.nodes.clone().context("no node")?;
        let number = node.strip_prefix("node").context("no number")?.parse()?;
        cluster.node("node-off", number)?;
        off.push(node);
    }
    let moved =
        one(&client, &token(1)?, "the first job to run elsewhere", |job| runs(job) && job.restarts == 2).await?;
    assert!(moved.nodes.as_ref().is_some_and(|node| !off.contains(node)), "{moved:?}");
    one(&client, &token(2)?, "the second job to be lost", |job| job.state == JobState::NodeFail).await?;
    let partitions = client.partitions().await?;
    let batch = partitions.iter().find(|partition| partition.name == "batch").context("no partition")?;
    assert_eq!(batch.usable_nodes(), 2);
    Ok(())
}

#[tokio::test]
async fn without_a_controller_nothing_is_submitted_twice() -> Result<()> {
    let cluster = Cluster::up(&Options { nodes: 1, ..Options::default() })?;
    let client = cluster.client(Limits::default()).await?;

    // It is not there.
    cluster.controller("ctld-stop")?;
    let queue = client.queue().await;
    assert!(matches!(&queue, Err(failure @ Failure::Unreachable { .. }) if failure.is_transient()), "{queue:?}");
    let text = script(&template(), &request(&cluster, 1, Shape::Single, WORKER)?)?;
    let submitted = client.submit(&text).await;
    assert!(matches!(submitted, Err(SubmitError::Unsure(Failure::Unreachable { .. }))), "{submitted:?}");
    let cancelled = client.cancel(&token(1)?, Which::All).await;
    assert!(matches!(cancelled, Err(Failure::Unreachable { .. })), "{cancelled:?}");
    cluster.controller("ctld-start")?;
    // It was not there, so it was not heard.
    assert_eq!(client.find(&token(1)?).await?, []);

    // It is there, and its answer is lost: the request waits for it to wake up.
    cluster.controller("ctld-freeze")?;
    let text = script(&template(), &request(&cluster, 2, Shape::Single, WORKER)?)?;
    let submitted = client.submit(&text).await;
    assert!(matches!(submitted, Err(SubmitError::Unsure(_))), "{submitted:?}");
    cluster.controller("ctld-thaw")?;
    let job = one(&client, &token(2)?, "the job whose answer was lost", runs).await?;
    assert_eq!(client.queue().await?.of(&token(2)?).count(), 1);

    // It is killed soon after a submission, forgets it, and gives its id out again.
    client.cancel(&token(2)?, Which::All).await?;
    one(&client, &token(2)?, "its end", |seen| seen.raw_id == job.raw_id && seen.state.is_ended()).await?;
    let mut serial = 100;
    let id = loop {
        serial += 1;
        ensure!(serial < 110, "the controller forgets nothing");
        let id = client.submit(&script(&template(), &request(&cluster, serial, Shape::Single, WORKER)?)?).await?;
        cluster.controller("ctld-kill")?;
        cluster.controller("ctld-start")?;
        if client.find(&token(serial)?).await?.is_empty() {
            break id;
        }
    };
    let forgotten = token(serial)?;
    let same = client.submit(&script(&template(), &request(&cluster, 200, Shape::Single, WORKER)?)?).await?;
    assert_eq!(same, id);
    // So the old submission's id must not be enough to cancel the new one.
    client.cancel(&forgotten, Which::These(&[JobRef::whole(id)])).await?;
    let job = one(&client, &token(200)?, "the new job", |job| !job.state.is_ended()).await?;
    assert_eq!(job.id, id);
    client.cancel(&token(200)?, Which::These(&[job.reference()])).await?;
    one(&client, &token(200)?, "the new job to end", |job| job.state.is_ended()).await?;
    Ok(())
}
