//! The folder of one test, and the program that it runs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::account::Account;
use crate::command::{Longhaul, Running, wait_for};
use crate::tree;

/// The whole program.
const WHOLE: &str = "longhaul";

/// The node's program.
const NODE: &str = "longhaul-node";

/// Settings of leases that run out soon, so that a test that kills workers waits seconds and not minutes.
pub const SHORT_LEASES: &str = "\
[coordinator]
lease_ttl = \"10s\"
lease_skew = \"1s\"
heartbeat = \"2s\"

[run]
backoff = \"1s\"
";

/// One test's folder: a store, a scratch and copies of the examples, none of it shared with
/// another test. The layers are shared: they are keyed by their content.
#[derive(Debug)]
pub struct Place {
    account: Account,
    root: PathBuf,
    program: PathBuf,
}

impl Place {
    /// A fresh folder in the account's cache, and the program as it is built now.
    ///
    /// # Errors
    ///
    /// The program cannot be built, or the folder not made.
    pub fn new(test: &str) -> Result<Self> {
        let account = Account::find()?;
        let cache = account.home().join(".cache/longhaul");
        let program = Self::program(&account)?;
        let stamp = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        let root = cache.join(format!("tests/{test}-{stamp:x}"));
        account.make_dir(&root)?;
        for name in ["benchmark", "agents"] {
            tree::copy(&tree::repository().join("examples").join(name), &root.join("examples").join(name), &account)?;
        }
        Ok(Self { account, root, program })
    }

    /// The program as it is built now, where the account can run it.
    ///
    /// # Errors
    ///
    /// It does not build, or cannot be copied.
    pub fn program(account: &Account) -> Result<PathBuf> {
        install_program(account, &account.home().join(".cache/longhaul/tests/bin"))
    }

    /// The program, where the account can run it.
    #[must_use]
    pub fn its_program(&self) -> &Path {
        &self.program
    }

    /// The node's program, which lies beside it.
    #[must_use]
    pub fn node_program(&self) -> PathBuf {
        self.program.with_file_name(NODE)
    }

    /// The account that everything runs as.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// The folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A path in the folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// This place's copy of the example benchmark.
    #[must_use]
    pub fn benchmark(&self) -> PathBuf {
        self.path("examples/benchmark")
    }

    /// The store's folder.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// The folder of sandboxes, spools and caches.
    #[must_use]
    pub fn scratch(&self) -> PathBuf {
        self.path("scratch")
    }

    /// The program with arguments.
    pub fn longhaul<I: AsRef<std::ffi::OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Longhaul {
        self.longhaul_at(&self.program, arguments)
    }

    /// As [`Place::longhaul`], with a copy of the program.
    pub fn longhaul_at<I: AsRef<std::ffi::OsStr>>(
        &self,
        program: &Path,
        arguments: impl IntoIterator<Item = I>,
    ) -> Longhaul {
        let mut command = self.account.command(program);
        command.args(arguments);
        Longhaul::new(command)
    }

    /// As [`Place::longhaul`], with a filesystem of this size for its scratch, in memory, that nobody else
    /// sees. Only root may mount one so that containers start on it.
    ///
    /// # Errors
    ///
    /// The scratch cannot be made.
    pub fn longhaul_on_small_disk<I: AsRef<std::ffi::OsStr>>(
        &self,
        size: &str,
        arguments: impl IntoIterator<Item = I>,
    ) -> Result<Longhaul> {
        use std::os::unix::fs::MetadataExt as _;
        const SCRIPT: &str = r#"mount -t tmpfs -o "size=$1,mode=0711,uid=$2,gid=$3" none "$4" &&
            exec setpriv --reuid "$2" --regid "$3" --init-groups -- "${@:5}""#;
        self.account.make_dir(&self.scratch())?;
        let home = std::fs::metadata(self.account.home())?;
        let mut command = Command::new("unshare");
        self.account.environment(&mut command);
        command.args(["--mount", "--propagation", "private", "--", "bash", "-c", SCRIPT, "bash", size]);
        command.args([home.uid().to_string(), home.gid().to_string()]).arg(self.scratch());
        command.arg(&self.program).args(arguments);
        Ok(Longhaul::new(command))
    }

    /// A copy of the node's program that no other test uses.
    ///
    /// # Errors
    ///
    /// It cannot be copied.
    pub fn own_program(&self) -> Result<PathBuf> {
        let copy = self.path(NODE);
        std::fs::copy(self.node_program(), &copy)?;
        self.account.give(&copy)?;
        Ok(copy)
    }

    /// `longhaul run` over this place's copy of the examples, store and scratch, answering in JSON.
    pub fn run<I: AsRef<std::ffi::OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Longhaul {
        self.over("run", self.benchmark().as_os_str(), arguments)
    }

    /// `longhaul run` with the tasks of an earlier run in place of a benchmark, as [`Place::run`].
    pub fn run_like<I: AsRef<std::ffi::OsStr>>(&self, run: &str, arguments: impl IntoIterator<Item = I>) -> Longhaul {
        self.over("run", format!("run:{run}").as_ref(), arguments)
    }

    /// `longhaul preflight`, as [`Place::run`]; what it finds is in the folder `preflight`.
    pub fn preflight<I: AsRef<std::ffi::OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Longhaul {
        let output = ["--output".into(), self.path("preflight").into_os_string()];
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned());
        self.over("preflight", self.benchmark().as_os_str(), output.into_iter().chain(arguments))
    }

    fn over<I: AsRef<std::ffi::OsStr>>(
        &self,
        what: &str,
        tasks: &std::ffi::OsStr,
        arguments: impl IntoIterator<Item = I>,
    ) -> Longhaul {
        let mut command = self.account.command(&self.program);
        command.arg(what).arg(tasks).args(["--format", "json"]);
        command.arg("--store").arg(self.store()).arg("--scratch").arg(self.scratch());
        // A base image that is there already, in place of the built-in one.
        if let Some(image) = std::env::var_os("LONGHAUL_TEST_BASE") {
            command.arg("--base").arg(image);
        }
        command.args(arguments);
        Longhaul::new(command)
    }

    /// Starts a coordinator over this place's store, and waits until it answers.
    ///
    /// # Errors
    ///
    /// It ends, or does not answer.
    pub fn serve(&self, arguments: &[&str]) -> Result<Running> {
        let store = self.store().display().to_string();
        let mut serving = self.longhaul(["serve", "--store", &store].iter().chain(arguments)).start()?;
        wait_for("the coordinator", Duration::from_secs(60), || {
            ensure!(serving.runs()?, "the coordinator ended");
            let status = self.longhaul(["status", "--store", &store, "--format", "json"]).end()?;
            Ok((status.code() == Some(0) && status.json()?["live"] == true).then_some(()))
        })?;
        Ok(serving)
    }

    /// The access file that this place's coordinator wrote for programs on this machine.
    #[must_use]
    pub fn access(&self) -> PathBuf {
        self.store().join("access/local.json")
    }

    /// What `longhaul show` says of a run or an episode, as JSON.
    ///
    /// # Errors
    ///
    /// It is not there.
    pub fn show(&self, what: &str) -> Result<Value> {
        self.longhaul(["show", what, "--store", &self.store().display().to_string(), "--format", "json"]).json()
    }

    /// The records of the steps of the attempt that settled an episode, the first observation before them.
    ///
    /// # Errors
    ///
    /// It is not there.
    pub fn steps(&self, episode: &str) -> Result<Vec<Value>> {
        let store = self.store().display().to_string();
        let steps = self.longhaul(["show", episode, "--steps", "--store", &store, "--format", "json"]).json()?;
        Ok(steps.as_array().with_context(|| format!("no steps: {steps:#}"))?.clone())
    }

    /// Fails if `longhaul store verify` finds anything in this place's store.
    ///
    /// # Errors
    ///
    /// It does.
    pub fn expect_sound(&self) -> Result<()> {
        let store = self.store().display().to_string();
        self.longhaul(["store", "verify", &store]).end()?.expect_code(0)?;
        Ok(())
    }

    /// The layers that attempts of the latest run built themselves, and the configure hooks
    /// that ran in place of a layer, each with its episode.
    ///
    /// # Errors
    ///
    /// The run is not there.
    pub fn hooks_of_latest(&self) -> Result<Vec<String>> {
        let episodes = self.show("latest")?["episodes"].as_array().map_or(0, Vec::len);
        let mut found = Vec::new();
        for index in 0..episodes {
            let shown = self.show(&format!("latest/{index}"))?;
            for attempt in shown["attempts"].as_array().into_iter().flatten() {
                let notes = &attempt["finish"]["notes"];
                let layers = notes["layers"].as_array().with_context(|| format!("no layers noted: {shown:#}"))?;
                let built = layers.iter().filter(|layer| layer["built"] == true);
                found.extend(built.map(|layer| format!("{index}: {} layer built", layer["kind"])));
                found.extend(notes["configure_ran"].as_str().map(|why| format!("{index}: configure ran: {why}")));
            }
        }
        Ok(found)
    }

    /// A settings file for this place.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn settings(&self, text: &str) -> Result<String> {
        let file = self.path("settings.toml");
        let base = std::env::var("LONGHAUL_TEST_BASE").map(|image| format!("\n[base]\nimage = \"{image}\"\n"));
        std::fs::write(&file, format!("{text}{}", base.unwrap_or_default()))?;
        Ok(file.display().to_string())
    }

    /// `--agent scripted:...` for one of the example agents.
    #[must_use]
    pub fn agent(&self, name: &str) -> String {
        format!("--agent=scripted:{}", self.path("examples/agents").join(name).display())
    }
}

impl Drop for Place {
    /// Removes the folder, unless the test failed: then it is evidence.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // Files of sandboxes may belong to subordinate ids; the account can always remove
        // what it made itself, and a test that leaves more than that has failed already.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// Builds the program and the node's (nothing, where they are fresh) and copies both to where the
/// account can run them; a copy is used again as long as they are the same. `LONGHAUL_PROGRAM`
/// names another one, which is taken as it is.
fn install_program(account: &Account, folder: &Path) -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("LONGHAUL_PROGRAM") {
        return Ok(program.into());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--locked", "--quiet", "--workspace", "--bin", WHOLE, "--bin", NODE])
        .current_dir(tree::repository())
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "the program does not build");
    let built = build_folder()?;
    let mut stamp = WHOLE.to_owned();
    for name in [WHOLE, NODE] {
        let file = built.join(name);
        let facts = file.metadata().with_context(|| format!("no {}", file.display()))?;
        let age = facts.modified()?.duration_since(UNIX_EPOCH)?.as_nanos();
        write!(stamp, "-{age:x}-{:x}", facts.len())?;
    }
    let place = folder.join(stamp);
    if !place.exists() {
        let beside = folder.join(format!(".new-{}", std::process::id()));
        account.make_dir(&beside)?;
        for name in [WHOLE, NODE] {
            std::fs::copy(built.join(name), beside.join(name))?;
            account.give(&beside.join(name))?;
        }
        match std::fs::rename(&beside, &place) {
            Ok(()) => remove_other_copies(folder, &place)?,
            // Another test was as fast.
            Err(_) if place.exists() => std::fs::remove_dir_all(&beside)?,
            Err(error) => return Err(error).with_context(|| format!("cannot make {}", place.display())),
        }
    }
    Ok(place.join(WHOLE))
}

/// Older copies are in nobody's way while they run, and only take room afterwards.
fn remove_other_copies(folder: &Path, keep: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path != keep && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("longhaul-")) {
            if path.is_dir() { std::fs::remove_dir_all(path)? } else { std::fs::remove_file(path)? }
        }
    }
    Ok(())
}

/// Where programs are built: `TARGET/debug/deps/TEST` is where we are.
fn build_folder() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let folder = test.ancestors().find(|path| path.ends_with("debug")).context("this test is not in a build folder")?;
    Ok(folder.to_owned())
}
