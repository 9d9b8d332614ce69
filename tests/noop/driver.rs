//! Sandboxes that are nothing: every layer is there, every command succeeds at once, the screen
//! is always the same, and every verifier says passed. A wait that an agent asks for is waited.
//!
//! Where they are to have a body, each is a process, and its screen shows how often something was
//! done in it: what an attempt goes on with looks as it was recorded, and nothing else does.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use longhaul_core::digest::Digest;
use longhaul_core::helper::{CommandSpec, ProcessInfo};
use longhaul_core::plan::LayerKind;
use longhaul_core::step::{ActionOutcome, Screenshot};
use longhaul_worker::sandbox::{
    CommandResult, Display, Driver, LayerBasis, LayerRequest, Pending, ReadyLayer, Sandbox, SandboxError,
    SandboxRequest,
};
use longhaul_worker::screen::{Frame, Performed, Rest, RestRule, Stepped};
use serde_json::{Value, json};

use crate::body::Body;

/// What every screen shows: one grey point, as a PNG.
const PICTURE: &[u8] =
    b"\x89PNG\x0d\x0a\x1a\x0a\x00\x00\x00\x0dIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x00\x00\x00\x00:\
    ~\x9bU\x00\x00\x00\x0aIDATx\x9cch\x00\x00\x00\x82\x00\x81w\xcdr\xb6\x00\x00\x00\x00IEND\xaeB`\
    \x82";

/// The folder in which a verifier's sandbox sees its socket.
const VERIFIER_SOCKET: &str = "/verify/socket";

/// The driver.
pub(crate) struct NoDriver {
    /// Where sandboxes have bodies, the folder that those name.
    pub(crate) bodies: Option<PathBuf>,
}

/// A sandbox.
struct NoSandbox {
    /// If it is a verifier's, its socket's folder.
    socket: Option<PathBuf>,
    body: Option<Arc<Body>>,
}

/// A screen. With a body it has a size, and shows how often something was done.
struct NoDisplay {
    body: Option<Arc<Body>>,
    size: (u16, u16),
    steps: AtomicU32,
}

fn gone(error: &std::io::Error) -> SandboxError {
    SandboxError::Gone(error.to_string())
}

impl Driver for NoDriver {
    fn basis<'a>(&'a self, _: &'a str) -> Pending<'a, Result<LayerBasis, SandboxError>> {
        let basis =
            LayerBasis { base: Digest::of(b"nothing"), arch: "none".to_owned(), overlay_driver: "none".to_owned() };
        Box::pin(async move { Ok(basis) })
    }

    fn find_layer(&self, kind: LayerKind, key: Digest) -> Pending<'_, Result<Option<ReadyLayer>, SandboxError>> {
        let layer = ReadyLayer {
            kind,
            key,
            content: key,
            bytes: 1,
            tolerated_exit: None,
            rerun: None,
            units: Vec::new(),
            handle: Arc::new(()),
        };
        Box::pin(async move { Ok(Some(layer)) })
    }

    fn build_layer(&self, _: LayerRequest) -> Pending<'_, Result<ReadyLayer, SandboxError>> {
        Box::pin(async { Err(SandboxError::Failed("every layer is there".to_owned())) })
    }

    fn start(&self, request: SandboxRequest) -> Pending<'_, Result<Arc<dyn Sandbox>, SandboxError>> {
        let socket = request.views.into_iter().find(|view| view.target == VERIFIER_SOCKET).map(|view| view.source);
        Box::pin(async move {
            let body = self.bodies.as_deref().map(Body::start).transpose().map_err(|error| gone(&error))?;
            let sandbox: Arc<dyn Sandbox> = Arc::new(NoSandbox { socket, body: body.map(Arc::new) });
            Ok(sandbox)
        })
    }

    fn remove<'a>(&'a self, folder: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async move { std::fs::remove_dir_all(folder).map_err(|error| SandboxError::Disk(error.to_string())) })
    }

    fn clean(&self) -> Pending<'_, Result<(), SandboxError>> {
        Box::pin(async { Ok(()) })
    }
}

/// Says passed, as the runner of verifiers does it.
fn pass(folder: &Path) -> std::io::Result<()> {
    use std::os::fd::AsRawFd as _;
    // Through the folder's descriptor: paths of sockets are short.
    let folder = std::fs::File::open(folder)?;
    let mut socket = UnixStream::connect(format!("/proc/self/fd/{}/worker", folder.as_raw_fd()))?;
    let outcome = json!({"kind": "verdict", "passed": true, "score": 100.0, "feedback": "", "details": {}});
    socket.write_all(format!("{}\n", json!({"op": "outcome", "outcome": outcome})).as_bytes())
}

impl Sandbox for NoSandbox {
    fn run(&self, command: CommandSpec) -> Pending<'_, Result<CommandResult, SandboxError>> {
        Box::pin(async move {
            if command.argv.first().is_some_and(|program| program == "python3")
                && let Some(folder) = &self.socket
            {
                pass(folder).map_err(|error| SandboxError::Failed(error.to_string()))?;
            }
            Ok(CommandResult { code: 0, timed_out: false, output: String::new() })
        })
    }

    fn start_display(&self, width: u16, height: u16) -> Pending<'_, Result<Arc<dyn Display>, SandboxError>> {
        Box::pin(async move {
            let body = self.body.clone();
            let display: Arc<dyn Display> =
                Arc::new(NoDisplay { body, size: (width, height), steps: AtomicU32::new(0) });
            Ok(display)
        })
    }

    fn copy_out<'a>(&'a self, path: &'a str, _: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async move { Err(SandboxError::NotFound { path: path.to_owned() }) })
    }

    fn copy_end<'a>(&'a self, path: &'a str, _: usize, to: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        self.copy_out(path, to)
    }

    fn pack_out<'a>(&'a self, path: &'a str, _: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async move { Err(SandboxError::NotFound { path: path.to_owned() }) })
    }

    fn copy_in<'a>(&'a self, _: &'a Path, _: &'a str) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async { Ok(()) })
    }

    fn start_units(&self, _: Vec<String>) -> Pending<'_, Result<(), SandboxError>> {
        Box::pin(async { Ok(()) })
    }

    fn processes(&self) -> Pending<'_, Result<Vec<ProcessInfo>, SandboxError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn bind_cpus(&self, _: &[usize]) {}

    fn memory_mib(&self) -> Pending<'_, Result<u64, SandboxError>> {
        Box::pin(async { Ok(0) })
    }

    fn exited(&self) -> Pending<'_, String> {
        Box::pin(async {
            match &self.body {
                Some(body) => body.gone().await,
                // It never does.
                None => std::future::pending().await,
            }
        })
    }

    fn kill(&self) -> Pending<'_, ()> {
        Box::pin(async {
            if let Some(body) = &self.body {
                body.end().await;
            }
        })
    }

    fn stop(&self) -> Pending<'_, Result<(), SandboxError>> {
        Box::pin(async {
            self.kill().await;
            Ok(())
        })
    }
}

impl NoDisplay {
    /// What it shows then, once its body has given a sign of life.
    async fn shows(&self, acted: bool) -> Result<(Screenshot, Arc<[u8]>), SandboxError> {
        let Some(body) = &self.body else {
            return Ok((Screenshot { png: Digest::of(PICTURE), width: 1, height: 1 }, PICTURE.into()));
        };
        body.answers().await.map_err(|error| gone(&error))?;
        let (width, height) = self.size;
        let before = self.steps.fetch_add(u32::from(acted), Ordering::SeqCst);
        let png = picture(width, height, before + u32::from(acted))
            .map_err(|error| SandboxError::Display(error.to_string()))?;
        Ok((Screenshot { png: Digest::of(&png), width, height }, png.into()))
    }
}

/// A picture of a number.
fn picture(width: u16, height: u16, number: u32) -> Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, u32::from(width), u32::from(height));
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut points = vec![0; usize::from(width) * usize::from(height) * 3];
    points.iter_mut().zip(number.to_be_bytes()).for_each(|(point, byte)| *point = byte);
    encoder.write_header()?.write_image_data(&points)?;
    Ok(bytes)
}

impl Display for NoDisplay {
    fn step(&self, actions: Vec<Value>, _: RestRule) -> Pending<'_, Result<Stepped, SandboxError>> {
        Box::pin(async move {
            let waits = actions.iter().filter_map(|action| action["time"].as_f64());
            let took = Duration::try_from_secs_f64(waits.sum()).unwrap_or_default();
            tokio::time::sleep(took).await;
            let (screenshot, png) = self.shows(!actions.is_empty()).await?;
            Ok(Stepped {
                performed: Performed {
                    outcomes: actions.iter().map(|_| ActionOutcome::Done).collect(),
                    injected: true,
                    took,
                },
                rest: Rest { rested: true, waited: Duration::ZERO },
                frame: Frame { screenshot, png, unchanged: false },
                capture: Duration::ZERO,
                stirred: Vec::new(),
            })
        })
    }
}
