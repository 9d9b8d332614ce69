//! A worker's work, killed at any moment, and what is left of it once the janitor has looked.
//!
//! The victim is this test program once more: it builds a layer, starts a sandbox over it with a way
//! out, works in it, and stops it, again and again. Who kills it is the subreaper of all that it starts,
//! so that whatever outlives it is seen without asking the code that is tried.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, bail, ensure};
use longhaul_apptainer::identity::{self, ProcessIdentity};
use longhaul_apptainer::layers::LayerStore;
use longhaul_apptainer::layers::build::{self, BuildRequest};
use longhaul_apptainer::{Network, Sandbox, janitor};
use longhaul_core::digest::Digest;
use longhaul_core::plan::HookPolicy;
use longhaul_core::time::{Millis, Timestamp};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::common::{World, shell};

/// The folder that a victim works in.
const VICTIM: &str = "LONGHAUL_TEST_VICTIM";

/// Files of two accounts, and a program that does not end by itself.
const HOOK: &str = "mkdir /opt/thing; head -c 4000000 /dev/urandom >/opt/thing/data; \
    su - ga -c 'touch ~/mine; mkdir -m 700 ~/closed; touch ~/closed/file'; sleep 601 & sleep 0.3";

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The worker.
    Worker,
    /// The first process of a container outside of it, whichever is being worked with.
    Apptainer,
    /// One of the programs that serve its files.
    FileServer,
    /// The way out.
    WayOut,
    /// The worker and Apptainer, while a layer is packed: what serves that container's files has neither
    /// a top nor an environment by which it could be known.
    Packing,
}

impl Target {
    /// Whether the worker lives on, and clears away what it lost.
    fn leaves_the_worker(self) -> bool {
        !matches!(self, Self::Worker | Self::Packing)
    }
}

/// What the first process of a container outside of it is called.
const APPTAINER: [&str; 3] = ["apptainer", "starter", "starter-suid"];

/// A moment to kill at: so long after the victim said that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) phase: &'static str,
    pub(crate) after: Duration,
    pub(crate) target: Target,
}

/// What a victim does, if this process is one.
pub(crate) async fn victim(world: &World) -> Option<Result<()>> {
    let folder = std::env::var_os(VICTIM)?;
    Some(work(world, Path::new(&folder)).await)
}

async fn work(world: &World, folder: &Path) -> Result<()> {
    let say = |phase: &str| tell(&format!("phase {phase}"));
    let store = LayerStore::open(&folder.join("layers"), None)?;
    let mut sandbox = world.spec("build");
    sandbox.scratch = folder.join("scratch");
    say("building");
    let request = BuildRequest {
        key: Digest::of(std::process::id().to_string().as_bytes()),
        env: "thing_env".into(),
        hook: HOOK.into(),
        limit: Millis::from_secs(120),
        policy: HookPolicy::Strict,
        accounts: Vec::new(),
        parents: Vec::new(),
        overlay_driver: world.apptainer.overlay_driver(&world.image, &folder.join("scratch")).await?,
        inputs: Vec::new(),
        units: Vec::new(),
        screen: (640, 480),
        sandbox,
        created: Timestamp(1),
    };
    let manifest = build::install(&world.apptainer, &store, &request).await?;
    let layer = store.use_layer(&manifest.key).await?.context("a layer that was just published is there")?;
    let mut spec = world.spec("episode");
    spec.scratch = folder.join("scratch");
    spec.layers = layer.path().map(Path::to_owned).into_iter().collect();
    spec.network = Network::Open;
    say("starting");
    let sandbox = Sandbox::start(&world.apptainer, spec).await?;
    say("showing");
    let worked = async {
        sandbox.start_display(640, 480).await?;
        say("acting");
        let line = "touch ~/mine; (trap '' TERM; sleep 602) & setsid sleep 603 >/dev/null 2>&1 & sleep 1.5; cat /opt/thing/data | wc -c";
        let (code, output) = shell(&sandbox, "ga", line).await?;
        ensure!(code == 0 && output == "4000000", "{code}: {output}");
        Ok(())
    }
    .await;
    say("stopping");
    sandbox.stop().await?;
    worked?;
    say("over");
    Ok(())
}

/// A line for whoever reads it; the killer may be gone.
fn tell(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A victim and what it says.
struct Victim {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Victim {
    fn start(test: &str, folder: &Path) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(VICTIM, folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().context("is piped")?).lines();
        Ok(Self { child, lines })
    }

    /// Waits until it says this; false if it ends before.
    fn reach(&mut self, phase: &str) -> Result<bool> {
        for line in &mut self.lines {
            if line?.ends_with(&format!("phase {phase}")) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn pid(&self) -> Result<i32> {
        Ok(i32::try_from(self.child.id())?)
    }
}

/// Those of this process's own descendants that are not among `ours`.
fn descendants(ours: &BTreeSet<i32>) -> Result<Vec<i32>> {
    let own = i32::try_from(std::process::id())?;
    Ok(identity::tree(own).into_iter().filter(|pid| *pid != own && !ours.contains(pid)).collect())
}

/// Buries those of whom nobody else can: they were handed to this process when their parents were killed.
fn bury(ours: &BTreeSet<i32>) -> Result<()> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if !ours.contains(&pid) {
            // Not ours, or still alive: nothing happens.
            let _: nix::Result<WaitStatus> = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
        }
    }
    Ok(())
}

/// Those of a victim's processes that have one of these names.
fn named(victim: &Victim, names: &[&str]) -> Result<Vec<i32>> {
    let all = identity::tree(victim.pid()?).into_iter();
    Ok(all.filter(|pid| names.contains(&identity::program_name(*pid).as_str())).collect())
}

fn kill(victim: &Victim, target: Target) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(120);
    while target == Target::Packing && named(victim, &["mksquashfs"])?.is_empty() {
        ensure!(Instant::now() < end, "no layer was packed");
    }
    let named = |names: &[&str]| named(victim, names);
    let chosen = match target {
        Target::Worker => vec![victim.pid()?],
        Target::Apptainer => named(&APPTAINER)?.into_iter().take(1).collect(),
        Target::FileServer => {
            named(&["fuse-overlayfs", "squashfuse_ll", "squashfuse"])?.into_iter().rev().take(1).collect()
        }
        Target::WayOut => named(&["slirp4netns"])?,
        // The worker first, so that it does not clear away what it lost.
        Target::Packing => [vec![victim.pid()?], named(&APPTAINER)?].concat(),
    };
    for pid in chosen {
        if let Some(process) = ProcessIdentity::of(pid)? {
            process.signal(Signal::SIGKILL)?;
        }
    }
    Ok(())
}

/// What looks like a sandbox's and is somebody else's.
struct Bystanders {
    process: Child,
    socket: UnixListener,
}

impl Bystanders {
    fn place(scratch: &Path) -> Result<Self> {
        fs::create_dir_all(scratch.join("sandbox-castle/x11"))?;
        fs::write(scratch.join("sandbox-castle/plans.txt"), "of sand")?;
        let socket = UnixListener::bind(scratch.join("sandbox-castle/x11/X1"))?;
        let mut process = Command::new("setsid");
        process.args(["sleep", "600"]).env("LONGHAUL_SANDBOX", "somebody-elses").stdin(Stdio::null());
        Ok(Self { process: process.spawn()?, socket })
    }

    fn check(mut self, scratch: &Path) -> Result<()> {
        ensure!(self.process.try_wait()?.is_none(), "somebody else's process was ended");
        ensure!(fs::read_to_string(scratch.join("sandbox-castle/plans.txt"))? == "of sand");
        std::os::unix::net::UnixStream::connect(scratch.join("sandbox-castle/x11/X1"))?;
        drop(self.socket);
        self.process.kill()?;
        self.process.wait()?;
        fs::remove_dir_all(scratch.join("sandbox-castle"))?;
        Ok(())
    }
}

/// Kills at each of these moments, and looks at what is left once the janitor has looked. `test` is the
/// name of the test that is the victim when it is started again. Returns how often the janitor found
/// something that a worker had lost, lived on without, and not cleared away by itself: what it lost may
/// be what it cleared away with.
pub(crate) async fn kill_at(world: &World, test: &str, moments: &[Moment]) -> Result<usize> {
    nix::sys::prctl::set_child_subreaper(true)?;
    let (mut outlived, mut left_by_the_living) = (0, 0);
    for (number, moment) in moments.iter().enumerate() {
        let folder = world.folder.path().join(format!("victim-{number}"));
        let scratch = folder.join("scratch");
        fs::create_dir_all(&scratch)?;
        let bystanders = Bystanders::place(&scratch)?;
        let ours = BTreeSet::from([i32::try_from(bystanders.process.id())?]);
        let mut victim = Victim::start(test, &folder)?;
        ensure!(victim.reach(moment.phase)?, "{moment:?}: the victim did not come so far");
        thread::sleep(moment.after);
        kill(&victim, moment.target)?;
        // Who lost a part of what it works with clears the rest away by itself.
        if moment.target.leaves_the_worker() {
            while victim.reach("nothing of the kind")? {}
        }
        victim.child.kill()?;
        victim.child.wait()?;
        bury(&ours)?;
        let orphans = descendants(&ours)?.len();
        outlived += usize::from(orphans > 0);
        tell(&format!("{moment:?}: {orphans} processes outlived it"));
        let cleared = janitor::clean(&world.apptainer, Some(&world.image), &scratch).await?;
        ensure!(cleared.failed.is_empty() && cleared.held.is_empty(), "{moment:?}: {cleared:?}");
        ensure!(cleared.foreign == [scratch.join("sandbox-castle")], "{moment:?}: {cleared:?}");
        if moment.target.leaves_the_worker() && !cleared.removed.is_empty() {
            tell(&format!("{moment:?}: the worker left {:?}", cleared.removed));
            left_by_the_living += 1;
        }
        bystanders.check(&scratch)?;
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            bury(&ours)?;
            let left = descendants(&ours)?;
            if left.is_empty() {
                break;
            }
            if Instant::now() >= end {
                let named: Vec<_> = left.iter().map(|pid| format!("{pid} {}", identity::program_name(*pid))).collect();
                bail!("{moment:?}: left are {named:?}; {cleared:?}");
            }
            thread::sleep(Duration::from_millis(50));
        }
        let left: Vec<_> = fs::read_dir(&scratch)?.flatten().map(|entry| entry.path()).collect();
        ensure!(left.is_empty(), "{moment:?}: left are {left:?}");
    }
    ensure!(outlived > 0, "nothing was killed in the middle of anything");
    Ok(left_by_the_living)
}
