//! Building layers: run the hook in a sandbox, end what is left, pack what it wrote.
//!
//! What a configure hook leaves *running* cannot be in a filesystem. The rule:
//!
//! 1. units that were started through the sandbox's `systemctl` or `service` are noted in
//!    the manifest and started again in every sandbox, as a boot would;
//! 2. session helpers that programs start by themselves ([`SESSION_HELPERS`]) do not count;
//! 3. anything else, an application or a server started by hand, makes the layer a
//!    [`LayerContent::Rerun`]: the hook is run for every attempt over the layer below.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longhaul_core::digest::Digest;
use longhaul_core::helper::{CommandSpec, ProcessInfo};
use longhaul_core::plan::{AccountPlan, HookPolicy, LAYER_FORMAT, LayerKind};
use longhaul_core::time::{Millis, Timestamp};

use super::manifest::{LayerContent, LayerInput, LayerManifest, Tolerated};
use super::store::{LayerStore, StoreError};
use crate::accounts;
use crate::base::{ARCH, BaseError, digest_file};
use crate::command::{self, BindPlan, ExecPlan};
use crate::program::{Apptainer, ToolError, last_lines};
use crate::sandbox::{Sandbox, SandboxError, SandboxSpec};
use crate::scratch::{SEEN_AT, Scratch, top_name};

/// Programs that a desktop session has running whatever is done in it.
pub const SESSION_HELPERS: [&str; 32] = [
    "Xvfb",
    "at-spi-bus-launcher",
    "at-spi2-registryd",
    "bamfdaemon",
    "dbus-daemon",
    "dbus-launch",
    "dconf-service",
    "dirmngr",
    "evolution-*",
    "gconfd-2",
    "gnome-keyring-daemon",
    "goa-daemon",
    "goa-identity-service",
    "gpg-agent",
    "gsd-*",
    "gvfs*",
    "ibus-*",
    "keyboxd",
    "mission-control-5",
    "obexd",
    "openbox",
    "pipewire*",
    "pulseaudio",
    "ssh-agent",
    "tracker-*",
    "wireplumber",
    "xclip",
    "xdg-*",
    "xfconfd",
    "xsel",
    "xsettingsd",
    "zeitgeist-*",
];

/// How many lines of a failed hook's log are shown.
const SHOWN_LINES: usize = 50;

/// How much of a hook's log is read for that.
const SHOWN_BYTES: usize = 64 * 1024;

/// What processes get between TERM and KILL when a hook has ended.
const END_GRACE: Duration = Duration::from_secs(5);

/// How long a configure hook's children are given to end or settle before they count.
const SETTLE: Duration = Duration::from_secs(2);

/// What a layer is built from.
#[derive(Clone, Debug)]
pub struct BuildRequest {
    /// The layer's key.
    pub key: Digest,
    /// The env's folder name.
    pub env: String,
    /// The hook, for `bash -lc`.
    pub hook: String,
    /// How long the hook may run.
    pub limit: Millis,
    /// What becomes of a hook that fails.
    pub policy: HookPolicy,
    /// Accounts that the env declares; made first where there is no layer below.
    pub accounts: Vec<AccountPlan>,
    /// What it is built over, lowest first: the base image's content, then layers' keys.
    pub parents: Vec<Digest>,
    /// The filesystem that stacks layers here.
    pub overlay_driver: String,
    /// The inputs of the key.
    pub inputs: Vec<LayerInput>,
    /// Units that the layer below has noted, to be started first.
    pub units: Vec<String>,
    /// Pixels across and down; a display for configure hooks.
    pub screen: (u16, u16),
    /// The sandbox: its layers are those that it is built over.
    pub sandbox: SandboxSpec,
    /// When the building began.
    pub created: Timestamp,
}

/// Why there is no layer.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The hook failed.
    #[error("the {} hook of {env} ended with exit code {exit}", kind.name())]
    Hook {
        /// Which layer.
        kind: LayerKind,
        /// The env.
        env: String,
        /// Its exit code.
        exit: i32,
        /// The last lines of its log; hostile until escaped.
        log_tail: String,
    },
    /// The hook ran over its time.
    #[error("the {} hook of {env} took longer than {limit}", kind.name())]
    HookTime {
        /// Which layer.
        kind: LayerKind,
        /// The env.
        env: String,
        /// Its time limit.
        limit: Millis,
        /// The last lines of its log; hostile until escaped.
        log_tail: String,
    },
    /// The sandbox failed.
    #[error("the sandbox of the build failed")]
    Sandbox(#[from] SandboxError),
    /// The layer could not be packed.
    #[error("the layer could not be packed")]
    Pack(#[source] ToolError),
    /// The packed layer could not be read.
    #[error("the packed layer could not be read")]
    Read(#[from] BaseError),
    /// The packed layer is not there.
    #[error("{path}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The layer could not be published.
    #[error("the layer could not be published")]
    Publish(#[from] StoreError),
}

impl BuildError {
    /// The end of the hook's log, if the hook is what failed.
    #[must_use]
    pub fn log_tail(&self) -> Option<&str> {
        match self {
            Self::Hook { log_tail, .. } | Self::HookTime { log_tail, .. } => Some(log_tail),
            _ => None,
        }
    }
}

/// Builds an install layer out of the env's pre_start hook and publishes it.
pub async fn install(
    apptainer: &Apptainer,
    store: &LayerStore,
    request: &BuildRequest,
) -> Result<LayerManifest, BuildError> {
    build(apptainer, store, request, LayerKind::Install).await
}

/// Builds a configure layer out of the env's post_start hook, with the display up, and
/// publishes it.
pub async fn configure(
    apptainer: &Apptainer,
    store: &LayerStore,
    request: &BuildRequest,
) -> Result<LayerManifest, BuildError> {
    build(apptainer, store, request, LayerKind::Configure).await
}

/// The log, inside, of an env hook.
#[must_use]
pub const fn hook_log(kind: LayerKind) -> &'static str {
    match kind {
        LayerKind::Base | LayerKind::Install => "/home/ga/env_setup_pre_start.log",
        LayerKind::Configure => "/home/ga/env_setup_post_start.log",
    }
}

/// The command that runs a hook of the benchmark, as root, with its log in a file.
#[must_use]
pub fn hook_command(hook: &str, log: &str, limit: Millis) -> CommandSpec {
    CommandSpec {
        argv: ["/bin/bash", "-lc", hook].map(str::to_owned).into(),
        user: "root".to_owned(),
        log_file: Some(log.to_owned()),
        limit_millis: limit.0,
        ..CommandSpec::default()
    }
}

async fn build(
    apptainer: &Apptainer,
    store: &LayerStore,
    request: &BuildRequest,
    kind: LayerKind,
) -> Result<LayerManifest, BuildError> {
    let sandbox = Sandbox::start(apptainer, request.sandbox.clone()).await?;
    let built = match hook(&sandbox, request, kind).await {
        Ok(done) => done,
        Err(error) => {
            // The hook's failure says more than what may follow from it.
            if let Err(later) = sandbox.stop().await {
                tracing::warn!(error = %later, "the sandbox of a failed build was not cleared away");
            }
            return Err(error);
        }
    };
    let manifest = |content| LayerManifest {
        format: LAYER_FORMAT.to_owned(),
        key: request.key,
        kind,
        env: request.env.clone(),
        content,
        parents: request.parents.clone(),
        arch: ARCH.to_owned(),
        overlay_driver: request.overlay_driver.clone(),
        tolerated: built.tolerated.clone(),
        units: built.units.clone(),
        inputs: request.inputs.clone(),
        hook_millis: built.hook_millis,
        created: request.created,
    };
    if let Some(reason) = built.left_running {
        sandbox.stop().await?;
        return Ok(store.publish(&manifest(LayerContent::Rerun { reason }), None).await?);
    }
    let image = request.sandbox.image.clone();
    let mut scratch = sandbox.end().await?;
    let published = async {
        let file = pack(apptainer, &image, &mut scratch).await?;
        let bytes = fs::metadata(&file).map_err(|source| BuildError::Io { path: file.clone(), source })?.len();
        let digest = digest_file(file.clone()).await?;
        Ok(store.publish(&manifest(LayerContent::File { digest, bytes }), Some(&file)).await?)
    }
    .await;
    scratch.remove(apptainer, Some(&image)).await.map_err(SandboxError::from)?;
    published
}

/// What a hook left.
#[derive(Debug)]
struct Done {
    tolerated: Option<Tolerated>,
    units: Vec<String>,
    left_running: Option<String>,
    hook_millis: u64,
}

async fn hook(sandbox: &Sandbox, request: &BuildRequest, kind: LayerKind) -> Result<Done, BuildError> {
    // Over a layer they are there already, as its hook left them.
    if request.sandbox.layers.is_empty() {
        accounts::make(sandbox, &request.accounts).await?;
    }
    if !request.units.is_empty() {
        // One that does not start any more is the hook's affair: it may start it itself.
        if let Err(error) = sandbox.start_units(request.units.clone()).await {
            tracing::warn!(env = request.env, %error, "not every unit of the layer below was started");
        }
    }
    if kind == LayerKind::Configure {
        let (width, height) = request.screen;
        sandbox.start_display(width, height).await?;
    }
    let log = hook_log(kind);
    let began = Instant::now();
    let ended = sandbox.run(hook_command(&request.hook, log, request.limit)).await?;
    let hook_millis = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let mut tolerated = None;
    if ended.code != 0 || ended.timed_out {
        let log_tail = log_tail(sandbox, log).await;
        let env = request.env.clone();
        if ended.timed_out {
            return Err(BuildError::HookTime { kind, env, limit: request.limit, log_tail });
        }
        if request.policy == HookPolicy::Strict {
            return Err(BuildError::Hook { kind, env, exit: ended.code, log_tail });
        }
        tolerated = Some(Tolerated { exit: ended.code, log_tail });
    }
    let mut left_running = None;
    if kind == LayerKind::Configure {
        // Children that are about to end are given the time to.
        let end = Instant::now() + SETTLE;
        loop {
            left_running = left(&sandbox.processes().await?);
            if left_running.is_none() || Instant::now() >= end {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let units = sandbox.units().await?;
    sandbox.kill_all(END_GRACE).await?;
    if left_running.is_none() {
        refresh_fonts(sandbox).await?;
    }
    Ok(Done { tolerated, units, left_running, hook_millis })
}

/// Makes the caches of fonts outlive the packing. A cache is valid for the exact time of its
/// folder, and a packed layer keeps whole seconds: without this, the first program of every
/// sandbox would read every font anew, which takes many seconds.
async fn refresh_fonts(sandbox: &Sandbox) -> Result<(), BuildError> {
    const SCRIPT: &str = r#"
command -v fc-cache >/dev/null || exit 0
find /usr/share/fonts /usr/local/share/fonts -type d 2>/dev/null | while IFS= read -r folder; do
  case "$(stat -c %y -- "$folder")" in
    *.000000000*) ;;
    *) touch -d "@$(stat -c %Y -- "$folder")" -- "$folder" ;;
  esac
done
fc-cache -s
"#;
    let ended = sandbox
        .run(CommandSpec {
            argv: ["/bin/bash", "-c", SCRIPT].map(str::to_owned).into(),
            user: "root".to_owned(),
            limit_millis: 300_000,
            output_limit: 2000,
            ..CommandSpec::default()
        })
        .await?;
    if ended.code != 0 {
        // Slower starts, and nothing else.
        tracing::warn!(code = ended.code, output = ended.output, "the caches of fonts were not refreshed");
    }
    Ok(())
}

/// Why a configure hook has to run again: the processes that no layer can hold. Pure.
#[must_use]
pub fn left(processes: &[ProcessInfo]) -> Option<String> {
    let counted: Vec<String> = processes
        .iter()
        .filter(|process| process.unit.is_none() && !is_session_helper(&process.command))
        .map(|process| process.command.chars().take(120).collect())
        .collect();
    (!counted.is_empty()).then(|| format!("the configure hook leaves running: {}", counted.join("; ")))
}

/// Whether a command line is that of a session helper.
fn is_session_helper(command: &str) -> bool {
    let program = command.split_whitespace().next().unwrap_or_default();
    let name = program.trim_matches(['[', ']']).rsplit('/').next().unwrap_or_default();
    SESSION_HELPERS.iter().any(|helper| match helper.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == *helper,
    })
}

/// The last lines of a hook's log; what cannot be read is said in its place.
pub async fn log_tail(sandbox: &Sandbox, log: &str) -> String {
    let ended = sandbox
        .run(CommandSpec {
            argv: ["tail", "-n", &SHOWN_LINES.to_string(), "--", log].map(str::to_owned).into(),
            user: "root".to_owned(),
            limit_millis: 10_000,
            output_limit: SHOWN_BYTES,
            ..CommandSpec::default()
        })
        .await;
    match ended {
        Ok(ended) => last_lines(ended.output.as_bytes(), SHOWN_LINES),
        Err(error) => format!("(the log could not be read: {error})"),
    }
}

/// Packs what a sandbox wrote, in a container with the same mapping of accounts: outside,
/// the files of most of them cannot even be read.
async fn pack(apptainer: &Apptainer, image: &Path, scratch: &mut Scratch) -> Result<PathBuf, BuildError> {
    let top = top_name(scratch.mark());
    let plan = ExecPlan {
        image: image.to_owned(),
        binds: vec![BindPlan { source: scratch.path().to_owned(), target: SEEN_AT.into(), writable: true }],
        argv: command::pack(&format!("{SEEN_AT}/{top}/upper"), &format!("{SEEN_AT}/layer.sqsh")),
        ..ExecPlan::default()
    };
    apptainer.tool(scratch, plan).await.map_err(BuildError::Pack)?;
    Ok(scratch.path().join("layer.sqsh"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(command: &str, unit: Option<&str>) -> ProcessInfo {
        ProcessInfo { pid: 9, uid: 1000, command: command.into(), unit: unit.map(str::to_owned) }
    }

    #[test]
    fn helpers_and_units_do_not_count() {
        let quiet = [
            process("/usr/bin/dbus-daemon --syslog --fork", None),
            process("dbus-launch --autolaunch x", None),
            process("/usr/libexec/gvfsd-fuse /run/x", None),
            process("/usr/libexec/at-spi-bus-launcher", None),
            process("[pipewire]", None),
            process("/usr/sbin/mariadbd", Some("mariadb.service")),
        ];
        assert_eq!(left(&quiet), None);
    }

    #[test]
    fn applications_count() {
        let reason = left(&[process("dbus-daemon", None), process("/usr/bin/gpredict", None)]).expect("counts");
        assert!(reason.contains("/usr/bin/gpredict") && !reason.contains("dbus"), "{reason}");
        assert!(left(&[process("python3 -m http.server dbus-daemon", None)]).is_some());
    }
}
