//! A coordinator that gives way to the next one of its store.

mod common;

use common::World;
use longhaul_proto::v1;
use tonic::{Code, Status};

async fn hand_over(world: &World, generation: u64) -> Result<Vec<(String, String)>, Status> {
    let request = v1::HandOverRequest { generation };
    let answer = world.control().await.hand_over(request).await?.into_inner();
    Ok(answer.secrets.into_iter().map(|secret| (secret.name, secret.value)).collect())
}

#[tokio::test]
async fn it_gives_its_keys_to_a_later_generation_alone_and_then_stops() {
    let world = World::start_as_generation(4).await;
    let secret = v1::NamedSecret { name: "KEY".to_owned(), value: "sk-1".to_owned() };
    let put = v1::PutSecretsRequest { secrets: vec![secret] };
    world.control().await.put_secrets(put).await.expect("taken");
    for generation in [3, 4] {
        assert_eq!(hand_over(&world, generation).await.unwrap_err().code(), Code::FailedPrecondition);
    }
    assert!(world.start_second().await.is_err(), "the store is taken");
    assert_eq!(hand_over(&world, 5).await.expect("handed over"), [("KEY".to_owned(), "sk-1".to_owned())]);
    world.coordinator.succeeded().await;
    let world = world.restart().await;
    assert_eq!(hand_over(&world, 5).await.expect("handed over"), [], "keys are in memory alone");
    world.stop().await;
}

#[tokio::test]
async fn one_that_was_not_started_to_be_followed_gives_way_to_nobody() {
    let world = World::start().await;
    assert_eq!(hand_over(&world, u64::MAX).await.unwrap_err().code(), Code::FailedPrecondition);
    world.stop().await;
}
