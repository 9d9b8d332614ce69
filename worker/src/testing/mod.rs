//! Stand-ins for tests: a driver whose sandboxes are folders, and a coordinator that speaks
//! the real service over a real socket.

pub(crate) mod coordinator;
pub(crate) mod sandbox;
