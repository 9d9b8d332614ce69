//! HTTP: out to the vendors, and in from programs that know nothing of us.

mod body;
pub(crate) mod client;
pub(crate) mod headers;
mod relayed;
pub(crate) mod server;
