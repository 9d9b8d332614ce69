//! Endpoints that this node does not reach by itself: somebody else connects.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use longhaul_core::call::Certainty;
use longhaul_core::endpoint::Destination;
use longhaul_gateway::ports::{Later, Pipe, Relay};
use longhaul_gateway::{GatewayConfig, Surface};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::outward::tls;
use crate::common::{KEY, Setup, World, call};
use crate::standin::Standin;

/// No resolver knows it.
const HOST: &str = "vendor.invalid";

/// Somebody who knows where the host is that nobody knows.
#[derive(Debug, Default)]
struct Knowing {
    /// Where it is.
    port: AtomicUsize,
    /// Where connections were asked for.
    asked: Mutex<Vec<Destination>>,
    /// What passed towards the vendor.
    passed: Arc<Mutex<Vec<u8>>>,
    /// After so many bytes of an answer's body connections break; never if 0.
    breaks_after: AtomicUsize,
    /// How many connections are not made, from now on.
    refuses: AtomicUsize,
}

impl Relay for Knowing {
    fn connect(&self, to: Destination) -> Later<'static, io::Result<Box<dyn Pipe>>> {
        self.asked.lock().unwrap().push(to);
        let refused = self.refuses.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        let port = u16::try_from(self.port.load(Ordering::SeqCst)).unwrap();
        let (passed, after) = (Arc::clone(&self.passed), self.breaks_after.load(Ordering::SeqCst));
        Box::pin(async move {
            if refused {
                return Err(io::Error::other("nobody relays now"));
            }
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            tokio::spawn(carry(stream, theirs, passed, after));
            let pipe: Box<dyn Pipe> = Box::new(ours);
            Ok(pipe)
        })
    }
}

/// Carries bytes, as many as may come back.
async fn carry(stream: TcpStream, pipe: tokio::io::DuplexStream, passed: Arc<Mutex<Vec<u8>>>, after: usize) {
    let (mut vendor, mut to_vendor) = stream.into_split();
    let (mut worker, mut to_worker) = tokio::io::split(pipe);
    let up = async {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = worker.read(&mut buffer).await {
            passed.lock().unwrap().extend_from_slice(&buffer[..read]);
            to_vendor.write_all(&buffer[..read]).await.unwrap();
        }
    };
    let down = async {
        let (mut buffer, mut seen) = ([0; 64], Vec::new());
        while let Ok(read @ 1..) = vendor.read(&mut buffer).await {
            seen.extend_from_slice(&buffer[..read]);
            let head = seen.windows(4).position(|bytes| bytes == b"\r\n\r\n");
            if (after > 0 && head.is_some_and(|head| seen.len() > head + 4 + after))
                || to_worker.write_all(&buffer[..read]).await.is_err()
            {
                return;
            }
        }
    };
    tokio::select! { () = up => {} () = down => {} }
}

/// A world whose endpoints are relayed to a stand-in, at that address.
fn world(relay: &Arc<Knowing>, port: u16, url: &str, more: impl FnOnce(&mut GatewayConfig) + 'static) -> World {
    relay.port.store(usize::from(port), Ordering::SeqCst);
    let relay = Arc::clone(relay);
    let mut setup = Setup::at(&[url.to_owned()]);
    for endpoint in &mut setup.plan.endpoints {
        endpoint.relay = true;
    }
    let config = Box::new(move |config: &mut GatewayConfig| {
        config.relay = Some(relay);
        more(config);
    });
    Setup { config, ..setup }.open()
}

#[tokio::test]
async fn a_vendor_that_only_the_relay_reaches_is_called_streamed_and_settled_as_any_other() {
    let vendor = Standin::start().await;
    let relay = Arc::new(Knowing::default());
    let world = world(&relay, vendor.address.port(), &format!("http://{HOST}:8000"), |_| {});
    for surface in [Surface::ALL; 5].into_iter().flatten() {
        world.account.call(call(surface)).await.unwrap();
    }
    let asked = relay.asked.lock().unwrap().clone();
    assert!(!asked.is_empty() && asked.iter().all(|to| (to.host.as_str(), to.port) == (HOST, 8000)), "{asked:?}");
    assert!(asked.len() < 20, "a connection is kept for the next call");
    assert_eq!(vendor.calls().len(), 20);
    assert_eq!(world.account.totals().settled.nanos(), vendor.billed());
}

#[tokio::test]
async fn whoever_relays_sees_neither_keys_nor_calls() {
    let vendor = Standin::start().await;
    let (url, pem) = tls(&vendor, HOST).await;
    let port = url.rsplit_once(':').unwrap().1.parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("ca.pem");
    std::fs::write(&roots, pem).unwrap();
    let relay = Arc::new(Knowing::default());
    let world = world(&relay, port, &format!("https://{HOST}"), move |config| config.extra_roots = vec![roots]);
    world.account.call(call(Surface::Messages)).await.unwrap();
    assert_eq!(relay.asked.lock().unwrap()[0].port, 443);
    assert_eq!(vendor.calls()[0].headers["x-api-key"], KEY);
    let passed = relay.passed.lock().unwrap().clone();
    assert!(passed.len() > 500, "it went another way");
    for word in [KEY, "What do you see?", "model-a", "messages"] {
        assert!(!passed.windows(word.len()).any(|bytes| bytes == word.as_bytes()), "{word}");
    }
}

#[tokio::test]
async fn a_tunnel_that_breaks_in_an_answer_is_settled_whole_and_marked() {
    let vendor = Standin::start().await;
    let relay = Arc::new(Knowing::default());
    relay.breaks_after.store(64, Ordering::SeqCst);
    let world = world(&relay, vendor.address.port(), &format!("http://{HOST}"), |_| {});
    world.account.call(call(Surface::Messages)).await.unwrap_err();
    let records = world.journal.records();
    assert_eq!(records.len(), 3, "two retries");
    for record in &records {
        assert_eq!((record.certainty, record.settled), (Certainty::Unconfirmed, record.reserved), "{record:?}");
        assert!(record.error.as_ref().unwrap().contains("broke off"), "{record:?}");
    }
    assert!(world.account.totals().settled.nanos() >= vendor.billed());
}

#[tokio::test]
async fn a_connection_that_the_relay_does_not_make_is_as_any_other_that_is_not_made() {
    let vendor = Standin::start().await;
    let relay = Arc::new(Knowing::default());
    relay.refuses.store(2, Ordering::SeqCst);
    let world = world(&relay, vendor.address.port(), &format!("http://{HOST}"), |_| {});
    world.account.call(call(Surface::Messages)).await.unwrap();
    let records = world.journal.records();
    let certainties: Vec<_> = records.iter().map(|record| record.certainty).collect();
    assert_eq!(certainties, [Certainty::Released, Certainty::Released, Certainty::Reported]);
    assert!(records[0].error.as_ref().unwrap().contains("nobody relays now"), "{:?}", records[0]);
    assert_eq!(world.account.totals().settled.nanos(), vendor.billed());
}
