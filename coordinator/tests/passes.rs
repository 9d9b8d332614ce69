//! What the token of an allocation lets its worker do, and nobody else.

mod common;

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use common::World;
use longhaul_coordinator::{ACCESS_FOLDER, PASSES_FOLDER};
use longhaul_core::ids::WorkerId;
use longhaul_core::time::Timestamp;
use longhaul_proto::access::{Access, Address, Secret, pass_file};
use longhaul_proto::v1;
use longhaul_proto::v1::blob_service_client::BlobServiceClient;
use longhaul_proto::v1::control_service_client::ControlServiceClient;
use longhaul_proto::v1::from_worker::Message as Up;
use longhaul_proto::v1::worker_service_client::WorkerServiceClient;
use tonic::{Code, Status};

const SUBMISSION: &str = "longhaul.0000000000000001.0000000000000001";

/// Says hello from an allocation, or from none.
async fn hello(access: &Access, task: Option<u32>) -> Result<(), Status> {
    let allocation = task.map(|task| v1::Allocation {
        token: SUBMISSION.to_owned(),
        job: "7".to_owned(),
        task,
        restarts: 0,
        ends_at_millis: None,
    });
    let hello = v1::Hello {
        protocol_version: longhaul_proto::PROTOCOL_VERSION,
        worker_id: WorkerId::new(Timestamp(1), task.unwrap_or(99)).to_string(),
        hostname: "node1".to_owned(),
        cpu_millis: 4000,
        memory_mib: 8192,
        allocation,
        ..v1::Hello::default()
    };
    let hello = tokio_stream::once(v1::FromWorker { message: Some(Up::Hello(hello)) });
    let mut client = WorkerServiceClient::new(access.connect().await.expect("reachable"));
    client.session(hello).await.map(drop)
}

#[tokio::test]
async fn an_allocations_token_opens_the_session_of_its_own_worker_and_commands_nothing() {
    let world = World::start_with_tls().await;
    let of_person = Access::read(world.coordinator.remote_access().expect("it listens")).expect("an access file");
    let run = world.submit(1).await;
    // What an earlier coordinator made for its allocation, at another port.
    let folder = world.store().join(ACCESS_FOLDER).join(PASSES_FOLDER).join(SUBMISSION);
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).expect("a folder");
    let file = folder.join(pass_file(3));
    let token = Secret::new("a token of the allocation's own".to_owned());
    let address = Address::Tls { host: "elsewhere".to_owned(), port: 1, ca_pem: String::new(), token };
    let text = serde_json::to_vec(&Access::new(address)).expect("JSON");
    let mut written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file).expect("a file");
    written.write_all(&text).expect("written");

    let world = world.restart().await;
    let pass = Access::read(&file).expect("an access file");
    assert_ne!(pass.address, of_person.address, "it has a token of its own, and the new address");
    hello(&pass, Some(3)).await.expect("its own worker");
    for other in [Some(4), None] {
        let refused = hello(&pass, other).await.expect_err("another worker");
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    let connection = pass.connect().await.expect("reachable");
    let mut blobs = BlobServiceClient::new(connection.clone());
    blobs.missing(v1::MissingRequest::default()).await.expect("a worker moves blobs");
    let mut control = ControlServiceClient::new(connection);
    control.list_runs(v1::ListRunsRequest {}).await.expect("it may know what layers are cited");
    let cancel = v1::CancelRequest { run_id: run.to_string(), by: "a worker".to_owned() };
    let refused = [
        control.cancel(cancel).await.map(drop),
        control.submit(v1::SubmitRequest::default()).await.map(drop),
        control.resume_pool(v1::ResumePoolRequest { pool: "x".to_owned() }).await.map(drop),
        control.put_secrets(v1::PutSecretsRequest::default()).await.map(drop),
        control.raise_budget(v1::RaiseBudgetRequest { run_id: run.to_string(), ..Default::default() }).await.map(drop),
    ];
    for refused in refused {
        assert_eq!(refused.expect_err("it commands nothing").code(), Code::PermissionDenied);
    }
    world.stop().await;
}
