//! The wire: the messages of `proto/longhaul/v1`, and the only conversion between them
//! and core.

/// The version of the worker protocol; a worker of another one is refused by name.
pub const PROTOCOL_VERSION: u32 = 1;

/// The generated code of package `longhaul.v1`.
#[allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::all,
    clippy::or_fun_call,
    clippy::use_self,
    reason = "generated; documented in the .proto files"
)]
pub mod v1 {
    tonic::include_proto!("longhaul.v1");
}

pub mod access;
pub mod convert;
