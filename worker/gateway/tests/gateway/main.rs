//! The gateway against servers that speak the vendors' protocols.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../standin/mod.rs"]
mod standin;

mod calls;
mod failing;
mod following;
mod limits;
mod outward;
mod relayed;
mod replicas;
mod sdk;
mod service;
mod serving;
