//! Servers of one model that come and go while calls are made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longhaul_core::call::Certainty;
use longhaul_core::replicas::FileReplicas;
use longhaul_gateway::Surface;

use crate::common::{KEY, Setup, World, call, until};
use crate::standin::{Fault, Standin};

const FILE: &str = "/shared/addresses";

/// A world whose endpoints are wherever a file says.
fn elsewhere() -> World {
    let mut setup = Setup::at(&[]);
    for endpoint in &mut setup.plan.endpoints {
        endpoint.replicas_file = Some(FILE.to_owned());
        endpoint.limits.concurrent = Some(4);
    }
    setup.open()
}

fn says(world: &World, servers: &[&Standin]) {
    says_as(world, servers, true);
}

/// The same of a file that was read as one for keys, or not.
fn says_as(world: &World, servers: &[&Standin], keyed: bool) {
    let urls = servers.iter().map(|server| server.url()).collect();
    world.gateway.set_replicas(BTreeMap::from([(FILE.to_owned(), FileReplicas { urls, keyed })]));
}

#[tokio::test]
async fn a_server_that_comes_is_used_and_one_that_is_named_no_more_gets_no_new_call() {
    let (one, two) = (Standin::start().await, Standin::start().await);
    let world = elsewhere();
    says(&world, &[&one]);
    world.account.call(call(Surface::Messages)).await.unwrap();
    assert_eq!(one.calls().len(), 1);
    // A call is in flight there while the file changes.
    one.state.lock().unwrap().held = true;
    let flying = world.calling(Surface::Messages);
    until("it has arrived", || one.calls().len() == 2).await;
    says(&world, &[&two]);
    for _ in 0..5 {
        world.account.call(call(Surface::Messages)).await.unwrap();
    }
    assert_eq!((one.calls().len(), two.calls().len()), (2, 5));
    one.state.lock().unwrap().held = false;
    flying.await.unwrap().unwrap();
    assert_eq!(one.calls().len(), 2, "it ended where it was");
    // Both together: an attempt stays with the one that has its history.
    says(&world, &[&one, &two]);
    let callers: Vec<_> = (0..8).map(|_| world.calling(Surface::Messages)).collect();
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    assert!(one.calls().len() > 2, "the load is shared");
    let records = world.journal.records();
    assert!(records.iter().all(|record| record.certainty == Certainty::Reported));
    let billed = one.billed() + two.billed();
    assert_eq!(world.account.totals().settled.nanos(), billed, "to the last unit");
}

#[tokio::test]
async fn calls_wait_for_the_first_server_and_reserve_nothing_meanwhile() {
    let world = elsewhere();
    let untold = world.calling(Surface::Messages);
    let down = |world: &World| {
        let words = world.gateway.words();
        words.into_iter().find(|word| word.endpoint == "anthropic").and_then(|word| word.down).map(|down| down.why)
    };
    until("it says that it was told nothing", || down(&world).is_some_and(|why| why.contains("not told yet"))).await;
    says(&world, &[]);
    until("it says that there is none", || down(&world).is_some_and(|why| why.contains("names no address now"))).await;
    assert!(world.journal.reserved.lock().unwrap().is_empty());
    let server = Standin::start().await;
    says(&world, &[&server]);
    untold.await.unwrap().unwrap();
    assert_eq!((server.calls().len(), down(&world)), (1, None));
    assert!(world.account.paused() > Duration::ZERO, "the wait was not the episode's time");
}

#[tokio::test]
async fn jobs_that_end_and_start_elsewhere_cost_no_call() {
    let world = Arc::new(elsewhere());
    let mut servers = vec![Standin::start().await, Standin::start().await];
    says(&world, &servers.iter().collect::<Vec<_>>());
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let account = Arc::clone(&world.account);
            tokio::spawn(async move {
                for _ in 0..60 {
                    account.call(call(Surface::ChatCompletions)).await.unwrap();
                }
            })
        })
        .collect();
    let mut gone = 0;
    for _ in 0..6 {
        let before = world.journal.records().len();
        until("some calls were made", || world.journal.records().len() >= (before + 15).min(240)).await;
        // One ends without a word, another starts elsewhere, and its address is written down.
        let dead = servers.remove(0);
        gone += dead.billed();
        drop(dead);
        let fresh = Standin::start().await;
        fresh.always(Some(Fault::Slow(Duration::from_millis(1))));
        servers.push(fresh);
        says(&world, &servers.iter().collect::<Vec<_>>());
    }
    for caller in callers {
        caller.await.unwrap();
    }
    let most: u32 = servers.iter().map(|server| server.state.lock().unwrap().most_in_flight).max().unwrap();
    assert!(most <= 4, "the limit is the endpoint's, over all its servers");
    let billed = gone + servers.iter().map(Standin::billed).sum::<u64>();
    assert!(world.account.totals().settled.nanos() >= billed, "what was cut off is settled whole");
}

#[tokio::test]
async fn a_key_goes_to_the_addresses_of_its_own_file_alone() {
    let (own, other) = (Standin::start().await, Standin::start().await);
    for server in [&own, &other] {
        KEY.clone_into(&mut server.state.lock().unwrap().key);
    }
    let world = elsewhere();
    let files = [(FILE, &own), ("/shared/others", &other)];
    let files = files.map(|(file, server)| (file.to_owned(), FileReplicas { urls: vec![server.url()], keyed: true }));
    world.gateway.set_replicas(files.into());
    for surface in Surface::ALL {
        world.account.call(call(surface)).await.unwrap();
    }
    assert_eq!((own.calls().len(), other.calls().len()), (4, 0));
    // An endpoint that names its addresses itself is told nothing by a file.
    let fixed = Setup::at(&[own.url()]).open();
    says(&fixed, &[&other]);
    fixed.account.call(call(Surface::Messages)).await.unwrap();
    assert_eq!(other.calls().len(), 0);
    let keys: BTreeSet<String> =
        own.calls().iter().flat_map(|seen| seen.headers.keys()).map(ToString::to_string).collect();
    assert!(keys.contains("x-api-key"), "{keys:?}");
}

#[tokio::test]
async fn a_key_goes_nowhere_that_a_file_says_which_was_read_for_an_endpoint_without_one() {
    let server = Standin::start().await;
    let world = elsewhere();
    says_as(&world, &[&server], false);
    let waiting = world.calling(Surface::Messages);
    let down = || world.gateway.words().into_iter().find_map(|word| word.down).map(|down| down.why);
    until("it says why", || down().is_some_and(|why| why.contains("nowhere to send a key"))).await;
    assert_eq!(server.calls().len(), 0);
    says(&world, &[&server]);
    waiting.await.unwrap().unwrap();
    assert_eq!(server.calls().len(), 1);
    // One without a key goes there all the same.
    let mut setup = Setup::at(&[]);
    for endpoint in &mut setup.plan.endpoints {
        endpoint.replicas_file = Some(FILE.to_owned());
        endpoint.secret = None;
    }
    let keyless = setup.open();
    says_as(&keyless, &[&server], false);
    keyless.account.call(call(Surface::Messages)).await.unwrap();
    assert_eq!(server.calls().len(), 2);
}
