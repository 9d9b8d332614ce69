//! Runs that were merged into the store of a coordinator: it never ran them, and shows them.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]

mod common;

use common::World;
use longhaul_core::time::Timestamp;
use longhaul_proto::v1;
use longhaul_store::{Merge, OpenOptions, SpaceFloor};
use tokio_stream::StreamExt as _;
use tonic::Code;

/// A run that is over, without a worker.
async fn cancelled(world: &World) -> longhaul_core::ids::RunId {
    let run = world.submit(2).await;
    let request = v1::CancelRequest { run_id: run.to_string(), by: "a test".to_owned() };
    world.control().await.cancel(request).await.unwrap();
    let mut updates = world.follow(run).await;
    while !updates.next().await.unwrap().unwrap().done {}
    run
}

#[tokio::test]
async fn a_merged_run_is_shown_beside_those_of_the_coordinators_own() {
    let from = World::start().await;
    let run = cancelled(&from).await;
    let mut merged = 0;
    let into = World::start().await;
    let own = cancelled(&into).await;
    // Nobody may have either of them open.
    let from_store = from.store().to_owned();
    let _folder = from.stop_and_keep().await;
    let into = into
        .restart_after(|store| {
            let options = OpenOptions { incarnation: 1, floor: SpaceFloor { bulk: 0, journal: 0 } };
            let merge = Merge {
                from: &[from_store],
                runs: &[],
                into: store,
                options: &options,
                at: Timestamp(1_700_000_000_000),
            };
            merged = merge.run(|_| {}).unwrap().len();
        })
        .await;
    assert_eq!(merged, 1);

    let mut control = into.control().await;
    let mut expected = [run.to_string(), own.to_string()];
    expected.sort();
    let ids = |runs: Vec<v1::RunSummary>| runs.into_iter().map(|run| run.run_id).collect::<Vec<_>>();
    assert_eq!(ids(control.status(v1::StatusRequest {}).await.unwrap().into_inner().runs), expected);
    assert_eq!(ids(control.list_runs(v1::ListRunsRequest {}).await.unwrap().into_inner().runs), expected);
    let mut updates = into.follow(run).await;
    let mut last = None;
    while let Some(update) = updates.next().await {
        last = Some(update.unwrap());
    }
    assert!(last.is_some_and(|update| update.done && update.summary.is_some_and(|run| run.cancelled == 2)));
    let again = v1::CancelRequest { run_id: run.to_string(), by: "a test".to_owned() };
    assert_eq!(control.cancel(again).await.unwrap().into_inner().cancelled, 0);
    // Its id is taken.
    assert_eq!(into.submit_as(run, 1).await.unwrap_err().code(), Code::AlreadyExists);
    into.stop().await;
}
