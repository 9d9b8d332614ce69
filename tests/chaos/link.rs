//! The network between a worker and the coordinator: what passes is copied, as long as it passes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use longhaul_proto::access::{Access, Address};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::schedule::Cut;

/// How late everything passes where it passes late.
const LATE: Duration = Duration::from_millis(300);

/// A network that can be cut.
#[derive(Debug)]
pub(crate) struct Link {
    state: watch::Sender<Option<Cut>>,
    address: SocketAddr,
}

/// Which way something goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToCoordinator,
    ToWorker,
}

impl Link {
    /// One to whatever address the coordinator's access file names when somebody connects.
    pub(crate) async fn start(access: PathBuf) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (state, seen) = watch::channel(None);
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                if *seen.borrow() == Some(Cut::Refused) {
                    continue;
                }
                // Whoever finds nobody there, or is cut off, sees that its connection is gone.
                tokio::spawn(connect(stream, access.clone(), seen.clone()));
            }
        });
        Ok(Self { state, address })
    }

    /// Writes an access file for whoever is to come over this network.
    pub(crate) fn write_access(&self, from: &Path, to: &Path) -> Result<()> {
        let access = Access::read(from)?;
        let Address::Tls { ca_pem, token, .. } = access.address else {
            anyhow::bail!("{} names no port", from.display());
        };
        let (host, port) = (self.address.ip().to_string(), self.address.port());
        let own = Access::new(Address::Tls { host, port, ca_pem, token });
        std::fs::write(to, serde_json::to_vec(&own)?).with_context(|| format!("cannot write {}", to.display()))
    }

    /// How it is from now on.
    pub(crate) fn set(&self, cut: Option<Cut>) {
        self.state.send_replace(cut);
    }
}

async fn connect(worker: TcpStream, access: PathBuf, state: watch::Receiver<Option<Cut>>) -> Result<()> {
    let Address::Tls { host, port, .. } = Access::read(&access)?.address else { return Ok(()) };
    let coordinator = TcpStream::connect((host, port)).await?;
    worker.set_nodelay(true)?;
    coordinator.set_nodelay(true)?;
    let (from_worker, to_worker) = worker.into_split();
    let (from_coordinator, to_coordinator) = coordinator.into_split();
    let mut broken = state.clone();
    tokio::select! {
        ended = copy(from_worker, to_coordinator, Way::ToCoordinator, state.clone()) => ended,
        ended = copy(from_coordinator, to_worker, Way::ToWorker, state) => ended,
        _ = broken.wait_for(|cut| *cut == Some(Cut::Refused)) => Ok(()),
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    way: Way,
    mut state: watch::Receiver<Option<Cut>>,
) -> Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        let passes = |cut: &Option<Cut>| match cut {
            Some(Cut::Silent) => false,
            Some(Cut::OneWay) => way == Way::ToWorker,
            Some(Cut::Refused | Cut::Slow) | None => true,
        };
        let late = *state.wait_for(passes).await? == Some(Cut::Slow);
        if late {
            tokio::time::sleep(LATE).await;
        }
        to.write_all(&buffer[..read]).await?;
    }
}
