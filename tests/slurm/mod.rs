//! A real Slurm cluster on this machine, from `tests/slurm/slurm-cluster`, which says how it is
//! made. It takes root, and the packages of `scripts/deps slurm`.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use longhaul_slurm::{Client, Limits, System};
use nix::sched::{CloneFlags, setns};

use crate::account::Account;
use crate::command::Longhaul;
use crate::place::Place;

pub mod figures;
pub mod vendor;
pub mod world;

/// What kind of cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many nodes.
    pub nodes: u32,
    /// Processors of each, as Slurm sees them.
    pub cpus: u32,
    /// Memory of each in MiB, as Slurm sees it.
    pub memory_mib: u32,
    /// Whether each node has a network of its own, so that it can be cut.
    pub net: bool,
    /// Whether memory is enforced.
    pub cgroup: bool,
    /// More lines for Slurm's settings; the last line of a name counts.
    pub conf: &'static str,
    /// A worker other than the program's own.
    pub worker: Option<PathBuf>,
    /// Whether leases last as they do for people, and not a fourth of that.
    pub usual_leases: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 4,
            cpus: 16,
            memory_mib: 32_000,
            net: false,
            cgroup: false,
            conf: "",
            worker: None,
            usual_leases: false,
        }
    }
}

/// A host of a cluster whose hosts have networks of their own.
#[derive(Clone, Copy, Debug)]
pub enum Host {
    /// Where the controller is, and people log in.
    Login,
    /// A node, by its number.
    Node(u32),
}

/// A cluster. It is gone with all its jobs when this is dropped, and also when this process is
/// gone without a chance to drop anything.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    account: Account,
}

impl Cluster {
    /// Starts one, and waits until all its nodes are up.
    ///
    /// # Errors
    ///
    /// Something that it needs is missing.
    pub fn up(options: &Options) -> Result<Self> {
        /// Several clusters of one process.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let account = Account::find()?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Short, since paths of unix sockets are: not below a deep $TMPDIR.
        let dir = PathBuf::from(format!("/tmp/lh-slurm-{}-{count}", std::process::id()));
        let cluster = Self { dir, account };
        // Owned before it is up: a script that fails says so, and leaves nothing.
        std::fs::create_dir(&cluster.dir).with_context(|| format!("cannot make {}", cluster.dir.display()))?;
        let more = cluster.dir.join("more.conf");
        std::fs::write(&more, options.conf)?;
        let mut up = cluster.script("up");
        up.args(["-n", &options.nodes.to_string()])
            .args(["-c", &options.cpus.to_string()])
            .args(["-m", &options.memory_mib.to_string()])
            .args(["--with", &std::process::id().to_string()])
            .args(options.net.then_some("--net"))
            .args(options.cgroup.then_some("--cgroup"))
            .arg("--conf")
            .arg(&more)
            .arg(&cluster.dir);
        succeed(up)?;
        cluster.account.make_dir(&cluster.shared())?;
        Ok(cluster)
    }

    /// The settings of the cluster: `SLURM_CONF` for whoever asks it.
    #[must_use]
    pub fn conf(&self) -> PathBuf {
        self.dir.join("slurm.conf")
    }

    /// `sbatch`, `squeue` and the others, as the unprivileged account and in the cluster's network.
    #[must_use]
    pub fn bin(&self) -> PathBuf {
        self.dir.join("bin")
    }

    /// A folder of the account that all nodes share.
    #[must_use]
    pub fn shared(&self) -> PathBuf {
        self.dir.join("shared")
    }

    /// On a node: a folder on its own disk that everybody may write to.
    #[must_use]
    pub fn local(&self) -> PathBuf {
        self.dir.join("local")
    }

    /// That folder of a node, as it is seen from outside.
    #[must_use]
    pub fn local_of(&self, node: u32) -> PathBuf {
        self.dir.join(format!("nodes/node{node}/local"))
    }

    /// The account that jobs belong to.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// A client of the cluster.
    ///
    /// # Errors
    ///
    /// Slurm's programs do not say which they are.
    pub async fn client(&self, limits: Limits) -> Result<Client<System>> {
        Ok(Client::connect(self.system(), 0x5eed, limits).await?)
    }

    /// Slurm's programs for this cluster.
    #[must_use]
    pub fn system(&self) -> System {
        System::new().in_folder(self.bin()).with_env("SLURM_CONF", self.conf())
    }

    /// Does something to a node: `node-off`, `node-on`, `freeze`, `thaw`, `cut`, `heal`.
    ///
    /// # Errors
    ///
    /// It is not that kind of cluster, or there is no such node.
    pub fn node(&self, what: &str, node: u32) -> Result<()> {
        let mut command = self.script(what);
        command.arg(&self.dir).arg(node.to_string());
        succeed(command).map(drop)
    }

    /// Does something to the controller: `ctld-kill`, `ctld-stop`, `ctld-start`, `ctld-freeze`,
    /// `ctld-thaw`.
    ///
    /// # Errors
    ///
    /// It is in that state already.
    pub fn controller(&self, what: &str) -> Result<()> {
        let mut command = self.script(what);
        command.arg(&self.dir);
        succeed(command).map(drop)
    }

    /// Listens on the own loopback of a host, whose network stays there however its cable is.
    ///
    /// # Errors
    ///
    /// It has no network of its own, or somebody else listens there.
    pub fn listen(&self, host: Host, port: u16) -> Result<TcpListener> {
        let name = match host {
            Host::Login => "head".to_owned(),
            Host::Node(node) => format!("node{node}"),
        };
        let file = self.dir.join("pids").join(&name);
        let text = std::fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
        let pid = text.split_whitespace().next().with_context(|| format!("{} names nobody", file.display()))?;
        let own = std::fs::read_link("/proc/self/ns/net")?;
        let network = format!("/proc/{pid}/ns/net");
        ensure!(std::fs::read_link(&network)? != own, "{name} has no network of its own");
        let network = std::fs::File::open(network)?;
        // On a thread of its own: only that changes its network, and a socket stays in its own.
        let listening = std::thread::spawn(move || {
            setns(network, CloneFlags::CLONE_NEWNET)?;
            anyhow::Ok(TcpListener::bind(("127.0.0.1", port))?)
        });
        listening.join().ok().context("the thread that listens panicked")?
    }

    /// Runs a program as the cluster's administrator; its stdout.
    ///
    /// # Errors
    ///
    /// It fails.
    pub fn admin<'a>(&self, command: impl IntoIterator<Item = &'a str>) -> Result<String> {
        let mut exec = self.script("exec");
        exec.arg("--root").arg(&self.dir).args(command);
        succeed(exec)
    }

    /// A program that runs as the account, where the cluster is reached.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut exec = self.script("exec");
        exec.arg(&self.dir).arg(program);
        self.account.environment(&mut exec);
        exec
    }

    /// The program of a place, where the cluster is reached.
    pub fn longhaul<I: AsRef<std::ffi::OsStr>>(
        &self,
        place: &Place,
        arguments: impl IntoIterator<Item = I>,
    ) -> Longhaul {
        let mut command = self.command(place.its_program());
        command.args(arguments);
        Longhaul::new(command)
    }

    fn script(&self, command: &str) -> Command {
        let mut script = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("slurm/slurm-cluster"));
        script.arg(command);
        script
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut down = self.script("down");
        down.arg("--remove").arg(&self.dir);
        // A test that has failed says more than this would; the watcher tries again.
        if let Err(error) = succeed(down)
            && !std::thread::panicking()
        {
            panic!("the cluster was not taken down: {error:#}");
        }
    }
}

/// Looks until there is something to see. The limit only ends what hangs.
///
/// # Errors
///
/// Nothing came, or looking failed.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    const LIMIT: Duration = Duration::from_secs(300);
    let looking = async {
        loop {
            if let Some(seen) = look().await? {
                return anyhow::Ok(seen);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(LIMIT, looking).await.with_context(|| format!("waited too long for {what}"))?
}

fn succeed(mut command: Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}: {said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
