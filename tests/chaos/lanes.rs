//! Who does the deeds: for everybody that something is done to, a task that does one after the other,
//! and that looks after a process.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use longhaul_tests::leftovers;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::program::{ORDERLY, Program};
use crate::schedule::{Blow, Deed, Event, Fill, Lane};
use crate::stage::Stage;

/// How often processes are looked after.
const LOOK: Duration = Duration::from_millis(200);

/// A process that ended for want of disk is started again after that long, again and again.
const AGAIN: Duration = Duration::from_secs(1);

/// What does a deed.
type Doing<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// Everybody that something can be done to.
pub(crate) struct Lanes {
    lanes: BTreeMap<Lane, (UnboundedSender<Event>, JoinHandle<Option<Program>>)>,
    stage: Arc<Stage>,
    contained: bool,
}

impl Lanes {
    /// Nobody yet.
    pub(crate) fn new(stage: &Arc<Stage>, contained: bool) -> Self {
        Self { lanes: BTreeMap::new(), stage: Arc::clone(stage), contained }
    }

    /// Looks after a process from now on.
    pub(crate) fn keep(&mut self, lane: Lane, program: Program) {
        let (sender, deeds) = unbounded_channel();
        let keeping = keep(lane, program, deeds, Arc::clone(&self.stage), self.contained);
        self.lanes.insert(lane, (sender, tokio::spawn(keeping)));
    }

    /// Has it done, once those before it to the same one are done.
    pub(crate) fn send(&mut self, event: Event) {
        let lane = event.deed.lane();
        let (stage, contained) = (Arc::clone(&self.stage), self.contained);
        let (sender, _) = self.lanes.entry(lane).or_insert_with(|| {
            let (sender, deeds) = unbounded_channel();
            (sender, tokio::spawn(serve(deeds, stage, contained)))
        });
        // A task that is gone has said why.
        let _ = sender.send(event);
    }

    /// Waits until what is being done is done; the processes.
    pub(crate) async fn end(self) -> Result<BTreeMap<Lane, Program>> {
        let mut programs = BTreeMap::new();
        let mut tasks = Vec::new();
        for (lane, (sender, task)) in self.lanes {
            drop(sender);
            tasks.push((lane, task));
        }
        for (lane, task) in tasks {
            let program = task.await.with_context(|| format!("who did deeds to {lane:?} is gone"))?;
            programs.extend(program.map(|program| (lane, program)));
        }
        Ok(programs)
    }
}

/// Looks after a process: harms it as it is told, and starts it again when it ended.
async fn keep(
    lane: Lane,
    mut program: Program,
    mut deeds: UnboundedReceiver<Event>,
    stage: Arc<Stage>,
    contained: bool,
) -> Option<Program> {
    loop {
        tokio::select! {
            event = deeds.recv() => match event {
                None => return Some(program),
                Some(event) => do_it(&stage, event, harm(&mut program, event, &stage, contained)).await,
            },
            () = tokio::time::sleep(LOOK) => look_after(lane, &mut program, &stage).await,
        }
    }
}

/// Does what needs no process of ours.
async fn serve(mut deeds: UnboundedReceiver<Event>, stage: Arc<Stage>, contained: bool) -> Option<Program> {
    while let Some(event) = deeds.recv().await {
        do_it(&stage, event, strike(event, &stage, contained)).await;
    }
    None
}

async fn do_it(stage: &Stage, event: Event, doing: Doing<'_>) {
    if stage.is_over() {
        return stage.tell(&format!("not done any more: {event:?}"));
    }
    stage.tell(&format!("begins: {event:?}"));
    match doing.await {
        Ok(()) => stage.tell(&format!("is over: {:?}", event.deed)),
        Err(error) => stage.wrong(format!("{:?}: {error:#}", event.deed)),
    }
}

/// A process may end by itself for want of disk; it is started again then, as a person would.
async fn look_after(lane: Lane, program: &mut Program, stage: &Stage) {
    let ended = match program.ended() {
        Ok(None) => return,
        Ok(Some(how)) => how,
        Err(error) => return stage.wrong(format!("{lane:?}: {error:#}")),
    };
    let disk = match lane {
        Lane::Worker(worker) => Lane::Disk(worker),
        _ => Lane::Store,
    };
    let text = format!("{lane:?} ended by itself: {ended}");
    // A coordinator that is to end has its workers leave, as it would end their allocations.
    let was_told = matches!(lane, Lane::Worker(_)) && ended == ORDERLY;
    if was_told || stage.was_full(disk) {
        stage.tell(&text);
    } else {
        stage.wrong(text);
    }
    tokio::time::sleep(AGAIN).await;
    if let Err(error) = program.again() {
        stage.wrong(format!("{lane:?}: {error:#}"));
    }
}

/// What is done to a process.
fn harm<'a>(program: &'a mut Program, event: Event, stage: &'a Stage, contained: bool) -> Doing<'a> {
    Box::pin(async move {
        match event.deed {
            Deed::Worker { harm, .. } | Deed::Coordinator { harm } => program.harm(harm, event.time()).await,
            Deed::Node { worker } => {
                program.kill()?;
                remove_below(&stage.scratch(worker, contained))?;
                tokio::time::sleep(event.time()).await;
                program.again()
            }
            // To somebody else.
            _ => Ok(()),
        }
    })
}

fn remove_below(folder: &std::path::Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// What is done to the rest.
fn strike(event: Event, stage: &Stage, contained: bool) -> Doing<'_> {
    Box::pin(async move {
        match event.deed {
            Deed::Sandbox { worker, nth, blow } => {
                let Some(pid) = process_of_sandbox(stage, worker, nth, contained)? else { return Ok(()) };
                match blow {
                    Blow::Kill => send(pid, Signal::SIGKILL),
                    Blow::Stop => {
                        send(pid, Signal::SIGSTOP);
                        tokio::time::sleep(event.time()).await;
                        send(pid, Signal::SIGCONT);
                    }
                }
            }
            Deed::Link { worker, cut } => {
                let link = stage.link(worker)?;
                link.set(Some(cut));
                tokio::time::sleep(event.time()).await;
                link.set(None);
            }
            Deed::Provider { mood } => {
                stage.provider.set(Some(mood));
                tokio::time::sleep(event.time()).await;
                stage.provider.set(None);
            }
            Deed::Disk { worker, fill } => {
                // Workers keep 32 MiB free.
                let left = if fill == Fill::Full { 0 } else { 20 };
                let disk = stage.disks.get(worker).map(|disk| (disk, left));
                fill_disk(stage, event, disk).await?;
            }
            Deed::Store { fill } => {
                // The store keeps 1 GiB free of what may wait, and half of that of its journal.
                let left = if fill == Fill::Full { 256 } else { 768 };
                fill_disk(stage, event, stage.store_disk.as_ref().map(|disk| (disk, left))).await?;
            }
            Deed::Worker { .. } | Deed::Node { .. } | Deed::Coordinator { .. } => {}
        }
        Ok(())
    })
}

async fn fill_disk(stage: &Stage, event: Event, disk: Option<(&crate::disks::Disk, u64)>) -> Result<()> {
    let Some((disk, left)) = disk else { return Ok(()) };
    stage.filled(event.deed.lane());
    disk.leave(left)?;
    tokio::time::sleep(event.time()).await;
    stage.filled(event.deed.lane());
    disk.heal()
}

/// A process of a sandbox may end at any time by itself.
fn send(pid: Pid, signal: Signal) {
    let _ = kill(pid, signal);
}

/// The nth of the processes of a worker's sandboxes, counted around.
fn process_of_sandbox(stage: &Stage, worker: usize, nth: usize, contained: bool) -> Result<Option<Pid>> {
    let mut found = leftovers::processes_that_name(&stage.scratch(worker, contained))?;
    found.retain(|(_, command)| !stage.is_worker(command) && !command.is_empty());
    let chosen = found.len().checked_sub(1).and_then(|last| found.get(nth % (last + 1)));
    if let Some((pid, command)) = chosen {
        stage.tell(&format!("the process is {pid}: {command}"));
    }
    Ok(chosen.map(|(pid, _)| Pid::from_raw(*pid)))
}
