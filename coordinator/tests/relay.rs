//! Connections that the coordinator makes for workers without a way out.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::World;
use longhaul_core::endpoint::{EndpointPlan, GatewayPlan, Protocol, RateLimits};
use longhaul_core::time::Millis;
use longhaul_proto::v1;
use longhaul_proto::v1::relay_service_client::RelayServiceClient;
use longhaul_proto::v1::relay_up::Message as Up;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

/// A vendor that listens; what it does with each connection is the test's.
async fn vendor() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

fn endpoint(port: u16, relay: bool) -> EndpointPlan {
    EndpointPlan {
        name: format!("at-{port}"),
        protocol: Protocol::OpenAi,
        vendor: "vendor".to_owned(),
        urls: vec![format!("http://127.0.0.1:{port}")],
        secret: None,
        limits: RateLimits::default(),
        model_limits: Vec::new(),
        call_limit: Millis::from_secs(60),
        retries: 0,
        relay,
        replicas_file: None,
    }
}

fn plan(endpoints: Vec<EndpointPlan>) -> GatewayPlan {
    GatewayPlan { endpoints, ..GatewayPlan::default() }
}

struct Tunnel {
    up: mpsc::Sender<v1::RelayUp>,
    down: Streaming<v1::RelayDown>,
}

impl Tunnel {
    async fn open(world: &World, port: u16) -> Result<Self, Status> {
        let mut client = RelayServiceClient::new(world.access().connect().await.expect("reachable"));
        let (up, pieces) = mpsc::channel(4);
        let to = v1::RelayTo { host: "127.0.0.1".to_owned(), port: u32::from(port) };
        up.send(v1::RelayUp { message: Some(Up::To(to)) }).await.expect("room");
        let down = client.open(ReceiverStream::new(pieces)).await?.into_inner();
        Ok(Self { up, down })
    }

    async fn say(&self, bytes: &[u8]) -> bool {
        self.up.send(v1::RelayUp { message: Some(Up::Data(bytes.to_vec().into())) }).await.is_ok()
    }

    /// What comes until the end; fails if it is none in order.
    async fn rest(&mut self) -> Result<Vec<u8>, Status> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.down.message().await? {
            bytes.extend_from_slice(&piece.data);
        }
        Ok(bytes)
    }
}

/// More than all windows together, and no whole number of pieces.
fn bytes() -> Vec<u8> {
    (0..20_000_003_u32).map(|index| u8::try_from(index % 251).expect("small")).collect()
}

#[tokio::test]
async fn bytes_pass_whole_both_ways_and_each_half_ends_by_itself() {
    let world = World::start().await;
    let (listener, port) = vendor().await;
    world.submit_with_gateway(&plan(vec![endpoint(port, true)])).await;
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await.expect("read");
        stream.write_all(&heard).await.expect("written");
        heard
    });
    let Tunnel { up, mut down } = Tunnel::open(&world, port).await.expect("a connection");
    for piece in bytes().chunks(60_000) {
        let piece = v1::RelayUp { message: Some(Up::Data(piece.to_vec().into())) };
        up.send(piece).await.expect("taken");
    }
    drop(up);
    let mut back = Vec::new();
    while let Some(piece) = down.message().await.expect("an end in order") {
        back.extend_from_slice(&piece.data);
    }
    assert!(back == bytes() && served.await.expect("it ended") == bytes());
    world.stop().await;
}

#[tokio::test]
async fn only_what_a_run_that_is_not_over_lets_be_relayed_is_reached() {
    let world = World::start().await;
    let ((_one, relayed), (_two, kept), (_three, unknown)) = (vendor().await, vendor().await, vendor().await);
    assert_eq!(Tunnel::open(&world, relayed).await.err().map(|status| status.code()), Some(Code::PermissionDenied));
    let run = world.submit_with_gateway(&plan(vec![endpoint(relayed, true), endpoint(kept, false)])).await;
    Tunnel::open(&world, relayed).await.expect("it is relayed");
    for port in [kept, unknown] {
        let refused = Tunnel::open(&world, port).await.err().expect("refused");
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().contains("relay = true"), "{refused}");
    }
    // Another run under its id is refused, and opens and closes nothing.
    world.submit_gateway_as(run, &plan(vec![endpoint(unknown, true)])).await.expect_err("another plan");
    let refused = Tunnel::open(&world, unknown).await.err().expect("refused");
    assert_eq!(refused.code(), Code::PermissionDenied);
    Tunnel::open(&world, relayed).await.expect("it is relayed still");
    // A coordinator that was started again knows it as well.
    let world = world.restart().await;
    Tunnel::open(&world, relayed).await.expect("it is relayed");
    let cancel = v1::CancelRequest { run_id: run.to_string(), by: "a test".to_owned() };
    world.control().await.cancel(cancel).await.expect("cancelled");
    for _ in 0..600 {
        if Tunnel::open(&world, relayed).await.is_err() {
            world.stop().await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the run is over, and its endpoint is still relayed");
}

#[tokio::test]
async fn what_cannot_be_reached_or_breaks_is_said_and_never_looks_like_an_end() {
    let world = World::start().await;
    let (listener, port) = vendor().await;
    world.submit_with_gateway(&plan(vec![endpoint(port, true)])).await;
    // Broken off by the vendor.
    let mut tunnel = Tunnel::open(&world, port).await.expect("a connection");
    let (mut stream, _) = listener.accept().await.expect("a connection");
    stream.write_all(b"the first half").await.expect("written");
    assert_eq!(&tunnel.down.message().await.expect("a piece").expect("one").data[..], b"the first half");
    reset(stream);
    assert_eq!(tunnel.rest().await.expect_err("it broke").code(), Code::Unavailable);
    // Ended by the vendor in order.
    let mut tunnel = Tunnel::open(&world, port).await.expect("a connection");
    drop(listener.accept().await.expect("a connection"));
    assert!(tunnel.rest().await.expect("an end").is_empty());
    // Given up by the worker.
    let tunnel = Tunnel::open(&world, port).await.expect("a connection");
    let (mut stream, _) = listener.accept().await.expect("a connection");
    drop(tunnel);
    assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or(0), 0, "the vendor sees the end");
    // Ended with the coordinator.
    let mut tunnel = Tunnel::open(&world, port).await.expect("a connection");
    let _stream = listener.accept().await.expect("a connection");
    let restarting = tokio::spawn(world.restart());
    assert!(tunnel.rest().await.is_err());
    let world = restarting.await.expect("it is back");
    // Not there.
    drop(listener);
    let refused = Tunnel::open(&world, port).await.err().expect("refused");
    assert!(refused.code() == Code::Unavailable && refused.message().contains("cannot be reached"), "{refused}");
    world.stop().await;
}

/// Closes a connection as one whose end is lost.
fn reset(stream: TcpStream) {
    stream.set_zero_linger().expect("settable");
    drop(stream);
}

#[tokio::test]
async fn a_vendor_that_is_faster_than_its_worker_is_held_back() {
    const PIECE: usize = 1 << 20;
    let world = World::start().await;
    let (listener, port) = vendor().await;
    world.submit_with_gateway(&plan(vec![endpoint(port, true)])).await;
    let mut tunnel = Tunnel::open(&world, port).await.expect("a connection");
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        while stream.write_all(&[7; PIECE]).await.is_ok() {
            count.fetch_add(PIECE, Ordering::SeqCst);
        }
    });
    let (mut before, mut same) = (0, 0);
    while same < 10 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = written.load(Ordering::SeqCst);
        same = if now == before && now > 0 { same + 1 } else { 0 };
        before = now;
        assert!(now < 64 * PIECE, "nothing holds it back");
    }
    // It goes on as soon as somebody reads.
    let mut read = 0;
    while read < 2 * before {
        read += tunnel.down.message().await.expect("a piece").expect("one").data.len();
    }
    world.stop().await;
}

#[tokio::test]
async fn whoever_says_nothing_of_where_to_is_refused() {
    let world = World::start().await;
    let mut client = RelayServiceClient::new(world.access().connect().await.expect("reachable"));
    for first in [Some(Up::Data(b"GET /".to_vec().into())), None] {
        let message = v1::RelayUp { message: first };
        let refused = client.open(tokio_stream::iter([message])).await.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
    let to = v1::RelayTo { host: "127.0.0.1".to_owned(), port: 70_000 };
    let refused = client.open(tokio_stream::iter([v1::RelayUp { message: Some(Up::To(to)) }])).await;
    assert_eq!(refused.expect_err("refused").code(), Code::InvalidArgument);
    world.stop().await;
}

#[tokio::test]
async fn what_a_worker_sends_after_the_vendor_is_gone_is_refused() {
    let world = World::start().await;
    let (listener, port) = vendor().await;
    world.submit_with_gateway(&plan(vec![endpoint(port, true)])).await;
    let mut tunnel = Tunnel::open(&world, port).await.expect("a connection");
    let (stream, _) = listener.accept().await.expect("a connection");
    reset(stream);
    assert!(tunnel.rest().await.is_err());
    while tunnel.say(&[0; 1000]).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.stop().await;
}
