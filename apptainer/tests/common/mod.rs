//! What the tests with real containers share.
//!
//! A cluster's users are not root, so nor are these tests: run by root, a test starts
//! itself again as the account `LONGHAUL_USER` (`longhaul` if unset; `scripts/deps` makes
//! it). The base image is `LONGHAUL_TEST_BASE`, or that of the account's own layer folder, built if
//! need be.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use longhaul_apptainer::base::UBUNTU_ARCHIVE;
use longhaul_apptainer::{Apptainer, BaseDefinition, BaseSource, Network, Sandbox, SandboxSpec, base};
use longhaul_core::helper::CommandSpec;
use nix::unistd::{Uid, User};

/// What a test works with.
#[derive(Debug)]
pub(crate) struct World {
    /// Apptainer.
    pub(crate) apptainer: Apptainer,
    /// The base image.
    pub(crate) image: PathBuf,
    /// A folder of the test's own; it goes with this value.
    pub(crate) folder: tempfile::TempDir,
    /// The helper's program.
    pub(crate) helper: PathBuf,
}

/// Runs `body` as an unprivileged account. `name` is the test's own name.
pub(crate) fn as_user<F: Future<Output = Result<()>>>(name: &str, body: impl FnOnce(World) -> F) -> Result<()> {
    if Uid::effective().is_root() {
        return again(name);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let world = World::new().await?;
        body(world).await
    })
}

/// Starts this test again as the account that is meant for it.
fn again(name: &str) -> Result<()> {
    let account = std::env::var("LONGHAUL_USER").unwrap_or_else(|_| "longhaul".to_owned());
    let user = User::from_name(&account)?.with_context(|| format!("no account `{account}`: run scripts/deps"))?;
    let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
    let folder = user.dir.join(".cache/longhaul/container-tests");
    make_for(&folder, uid, gid)?;
    // Root's own folders are closed to that account: it gets copies of both programs.
    let program = copy_for(&std::env::current_exe()?, &folder)?;
    let helper = copy_for(&helper_program()?, &folder)?;
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &uid.to_string(), "--regid", &gid.to_string(), "--init-groups", "--"]);
    command.arg(program).args([name, "--exact", "--nocapture", "--test-threads=1"]);
    command.env_clear().current_dir(&user.dir);
    let told = ["LONGHAUL_TEST_BASE", "LONGHAUL_TEST_KILLS", "LONGHAUL_TEST_SEED", "RUST_BACKTRACE"];
    for kept in ["http_proxy", "https_proxy", "no_proxy"].iter().chain(&told) {
        if let Some(value) = std::env::var_os(kept) {
            command.env(kept, value);
        }
    }
    command
        .env("HOME", &user.dir)
        .env("USER", &account)
        .env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LONGHAUL_TEST_HELPER", helper)
        .env("LONGHAUL_TEST_FOLDER", folder);
    let status = command.status().context("setpriv does not start")?;
    ensure!(status.success(), "the test failed as account {account}: {status}");
    Ok(())
}

/// Makes a folder for an account, with those of its parents that are missing.
fn make_for(folder: &Path, uid: u32, gid: u32) -> Result<()> {
    if !folder.is_dir() {
        if let Some(parent) = folder.parent() {
            make_for(parent, uid, gid)?;
        }
        // Another test may be making it too.
        match fs::create_dir(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => chown(folder, Some(uid), Some(gid))?,
        }
    }
    Ok(())
}

/// A copy of a program, named by its time, so that many tests make it once.
fn copy_for(program: &Path, folder: &Path) -> Result<PathBuf> {
    let name = program.file_name().context("a program has a name")?.to_string_lossy().into_owned();
    let stamp = fs::metadata(program)?.modified()?.duration_since(std::time::UNIX_EPOCH)?.as_nanos();
    let copy = folder.join(format!("{name}-{stamp}"));
    if !copy.exists() {
        let fresh = folder.join(format!("{name}-{stamp}.{}", std::process::id()));
        fs::copy(program, &fresh)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
        fs::rename(&fresh, &copy)?;
    }
    Ok(copy)
}

/// The helper as it is built now.
fn helper_program() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("LONGHAUL_TEST_HELPER") {
        return Ok(program.into());
    }
    // Beside this test's own folder, in the same profile.
    let here = std::env::current_exe()?;
    let folder = here.parent().and_then(Path::parent).context("a test lies in a target folder")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo).args(["build", "--quiet", "-p", "longhaul-helper"]).status()?;
    ensure!(built.success(), "the helper does not build");
    Ok(folder.join("longhaul-helper"))
}

impl World {
    async fn new() -> Result<Self> {
        let apptainer = Apptainer::detect().await?;
        let home = PathBuf::from(std::env::var_os("HOME").context("an account has a home")?);
        let cache = home.join(".cache/longhaul");
        let definition = match std::env::var("LONGHAUL_TEST_BASE") {
            Ok(path) => BaseSource::parse(&path, UBUNTU_ARCHIVE).into(),
            Err(_) => BaseDefinition::default(),
        };
        let image = base::ensure(&apptainer, &definition, &cache.join("layers/images"), &cache.join("work")).await?;
        let tests =
            std::env::var_os("LONGHAUL_TEST_FOLDER").map_or_else(|| cache.join("container-tests"), PathBuf::from);
        fs::create_dir_all(&tests)?;
        Ok(Self {
            apptainer,
            image: image.path,
            folder: tempfile::Builder::new().prefix("test-").tempdir_in(tests)?,
            helper: helper_program()?,
        })
    }

    /// A sandbox's description, with a scratch of this test's own.
    pub(crate) fn spec(&self, id: &str) -> SandboxSpec {
        SandboxSpec {
            id: id.to_owned(),
            image: self.image.clone(),
            scratch: self.folder.path().join("scratch"),
            helper_program: self.helper.clone(),
            network: Network::None,
            ..SandboxSpec::default()
        }
    }
}

/// Runs a line of shell as an account and returns its exit code and output.
pub(crate) async fn shell(sandbox: &Sandbox, user: &str, line: &str) -> Result<(i32, String)> {
    let ended = sandbox
        .run(CommandSpec {
            argv: ["/bin/bash", "-lc", line].map(str::to_owned).into(),
            user: user.to_owned(),
            limit_millis: 120_000,
            output_limit: 64 * 1024,
            ..CommandSpec::default()
        })
        .await?;
    ensure!(!ended.timed_out, "`{line}` took too long: {}", ended.output);
    Ok((ended.code, ended.output.trim().to_owned()))
}
