//! Models at work: whole runs in real containers, with agents that call a stand-in of the vendors,
//! which speaks their protocols and counts by itself what it bills.

#[path = "../../worker/gateway/tests/standin/mod.rs"]
#[expect(dead_code, reason = "the tests of the gateway use the rest of it")]
#[expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]
mod standin;

mod audit;
mod forms;
mod judging;
mod loops;
mod money;
mod outage;
mod outside;
mod replicas;
mod resuming;
mod rounds;
mod secrecy;
mod vendor;
