//! Files of addresses: read while runs live, and handed to workers.

mod common;

use std::path::Path;

use common::{FakeWorker, World};
use longhaul_core::endpoint::{EndpointPlan, GatewayPlan, Protocol, RateLimits};
use longhaul_core::time::Millis;
use longhaul_proto::v1;
use longhaul_proto::v1::relay_service_client::RelayServiceClient;
use longhaul_proto::v1::relay_up::Message as Up;
use longhaul_proto::v1::to_worker::Message as Down;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

fn plan(file: &Path, secret: Option<&str>, relay: bool) -> GatewayPlan {
    let endpoint = EndpointPlan {
        name: "vllm".to_owned(),
        protocol: Protocol::OpenAi,
        vendor: "vllm".to_owned(),
        urls: Vec::new(),
        secret: secret.map(str::to_owned),
        limits: RateLimits::default(),
        model_limits: Vec::new(),
        call_limit: Millis::from_secs(60),
        retries: 0,
        relay,
        replicas_file: Some(file.to_str().expect("text").to_owned()),
    };
    GatewayPlan { endpoints: vec![endpoint], ..GatewayPlan::default() }
}

/// What a worker is told next of where servers are.
async fn told(worker: &mut FakeWorker) -> Vec<String> {
    loop {
        if let Down::ReplicaFiles(files) = worker.next().await {
            let [file] = &files.files[..] else { panic!("one file: {files:?}") };
            return file.urls.clone();
        }
    }
}

/// What the coordinator shows of its one file, once that is so.
async fn shown(world: &World, so: impl Fn(&v1::ReplicasRow) -> bool) -> v1::ReplicasRow {
    for _ in 0..600 {
        let status = common::status(&world.access()).await.expect("a status");
        if let [row] = &status.replicas[..]
            && so(row)
        {
            return row.clone();
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the file is never shown so");
}

#[tokio::test]
async fn workers_hear_of_servers_that_come_and_go_also_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("addresses");
    std::fs::write(&file, "http://node1:8000\n").expect("written");
    let world = World::start().await;
    world.submit_with_gateway(&plan(&file, Some("KEY"), false)).await;
    shown(&world, |row| row.urls == ["http://node1:8000"]).await;
    let mut worker = FakeWorker::connect(&world.access(), &[]).await;
    assert_eq!(told(&mut worker).await, ["http://node1:8000"], "after its welcome");
    std::fs::write(&file, "http://node1:8000\nhttp://node2:8000\n").expect("written");
    assert_eq!(told(&mut worker).await, ["http://node1:8000", "http://node2:8000"]);
    std::fs::write(&file, "# all jobs have ended\n").expect("written");
    assert_eq!(told(&mut worker).await, [""; 0]);
    // What others may write says nowhere to send a key, and changes nothing.
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(&file, "http://node3:8000\n").expect("written");
    assert_eq!(told(&mut worker).await, ["http://node3:8000"]);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).expect("changed");
    std::fs::write(&file, "http://elsewhere:8000\n").expect("written");
    let row = shown(&world, |row| !row.problem.is_empty()).await;
    assert!(row.urls == ["http://node3:8000"] && row.problem.contains("chmod o-w"), "{row:?}");
    let world = world.restart().await;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("changed");
    shown(&world, |row| row.urls == ["http://elsewhere:8000"]).await;
    let mut worker = FakeWorker::connect(&world.access(), &[]).await;
    assert_eq!(told(&mut worker).await, ["http://elsewhere:8000"]);
    world.stop().await;
}

#[tokio::test]
async fn the_relay_connects_to_where_a_file_says_and_nowhere_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("addresses");
    let server = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let port = server.local_addr().expect("an address").port();
    std::fs::write(&file, "http://127.0.0.1:9\n").expect("written");
    let world = World::start().await;
    world.submit_with_gateway(&plan(&file, None, true)).await;
    shown(&world, |row| row.urls.len() == 1).await;
    let open = async || {
        let mut client = RelayServiceClient::new(world.access().connect().await.expect("reachable"));
        let (up, pieces) = mpsc::channel(4);
        let to = v1::RelayTo { host: "127.0.0.1".to_owned(), port: u32::from(port) };
        up.send(v1::RelayUp { message: Some(Up::To(to)) }).await.expect("room");
        client.open(ReceiverStream::new(pieces)).await.map(drop)
    };
    assert_eq!(open().await.map_err(|status| status.code()), Err(tonic::Code::PermissionDenied));
    std::fs::write(&file, format!("http://127.0.0.1:{port}\n")).expect("written");
    shown(&world, |row| row.urls[0].ends_with(&port.to_string())).await;
    open().await.expect("it is there now");
    world.stop().await;
}
