//! Sandboxes with nothing in them: a screen that changes with every step.

use std::path::Path;
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
use serde_json::Value;

pub(crate) const WIDTH: u16 = 16;
pub(crate) const HEIGHT: u16 = 12;

/// How long a step takes.
const STEP: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct EmptyDriver;

struct EmptySandbox;

#[derive(Default)]
struct EmptyDisplay(AtomicU32);

fn absent<T>(what: &str) -> Result<T, SandboxError> {
    Err(SandboxError::Failed(format!("there is no {what} here")))
}

impl Driver for EmptyDriver {
    fn basis<'a>(&'a self, _: &'a str) -> Pending<'a, Result<LayerBasis, SandboxError>> {
        let basis =
            LayerBasis { base: Digest::of(b"base"), arch: "none".to_owned(), overlay_driver: "none".to_owned() };
        Box::pin(async move { Ok(basis) })
    }

    fn find_layer(&self, _: LayerKind, _: Digest) -> Pending<'_, Result<Option<ReadyLayer>, SandboxError>> {
        Box::pin(async { Ok(None) })
    }

    fn build_layer(&self, _: LayerRequest) -> Pending<'_, Result<ReadyLayer, SandboxError>> {
        Box::pin(async { absent("layer") })
    }

    fn start(&self, _: SandboxRequest) -> Pending<'_, Result<Arc<dyn Sandbox>, SandboxError>> {
        Box::pin(async { Ok(Arc::new(EmptySandbox) as Arc<dyn Sandbox>) })
    }

    fn remove<'a>(&'a self, folder: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async move { std::fs::remove_dir_all(folder).map_err(|error| SandboxError::Disk(error.to_string())) })
    }

    fn clean(&self) -> Pending<'_, Result<(), SandboxError>> {
        Box::pin(async { Ok(()) })
    }
}

impl Sandbox for EmptySandbox {
    fn run(&self, _: CommandSpec) -> Pending<'_, Result<CommandResult, SandboxError>> {
        Box::pin(async { absent("program") })
    }

    fn start_display(&self, _: u16, _: u16) -> Pending<'_, Result<Arc<dyn Display>, SandboxError>> {
        Box::pin(async { Ok(Arc::new(EmptyDisplay::default()) as Arc<dyn Display>) })
    }

    fn copy_out<'a>(&'a self, path: &'a str, _: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async { Err(SandboxError::NotFound { path: path.to_owned() }) })
    }

    fn copy_end<'a>(&'a self, path: &'a str, _: usize, to: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        self.copy_out(path, to)
    }

    fn pack_out<'a>(&'a self, path: &'a str, _: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async { Err(SandboxError::NotFound { path: path.to_owned() }) })
    }

    fn copy_in<'a>(&'a self, _: &'a Path, _: &'a str) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async { absent("place for it") })
    }

    fn start_units(&self, _: Vec<String>) -> Pending<'_, Result<(), SandboxError>> {
        Box::pin(async { Ok(()) })
    }

    fn processes(&self) -> Pending<'_, Result<Vec<ProcessInfo>, SandboxError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn bind_cpus(&self, _: &[usize]) {}

    fn memory_mib(&self) -> Pending<'_, Result<u64, SandboxError>> {
        Box::pin(async { Ok(1) })
    }

    fn exited(&self) -> Pending<'_, String> {
        Box::pin(std::future::pending())
    }

    fn kill(&self) -> Pending<'_, ()> {
        Box::pin(async {})
    }

    fn stop(&self) -> Pending<'_, Result<(), SandboxError>> {
        Box::pin(async { Ok(()) })
    }
}

impl Display for EmptyDisplay {
    fn step(&self, actions: Vec<Value>, _: RestRule) -> Pending<'_, Result<Stepped, SandboxError>> {
        Box::pin(async move {
            tokio::time::sleep(STEP).await;
            let png: Arc<[u8]> = picture(self.0.fetch_add(1, Ordering::SeqCst)).into();
            let screenshot = Screenshot { png: Digest::of(&png), width: WIDTH, height: HEIGHT };
            Ok(Stepped {
                performed: Performed {
                    outcomes: actions.iter().map(|_| ActionOutcome::Done).collect(),
                    injected: true,
                    took: Duration::ZERO,
                },
                rest: Rest { rested: true, waited: Duration::ZERO },
                frame: Frame { screenshot, png, unchanged: false },
                capture: Duration::ZERO,
                stirred: Vec::new(),
            })
        })
    }
}

/// A picture of a number.
fn picture(number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, u32::from(WIDTH), u32::from(HEIGHT));
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut pixels = vec![0; usize::from(WIDTH) * usize::from(HEIGHT) * 3];
    pixels[..4].copy_from_slice(&number.to_be_bytes());
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    bytes
}
