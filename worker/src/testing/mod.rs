//! Stand-ins for tests: a driver whose sandboxes are folders, a coordinator that speaks the real
//! service over a real socket, and plans.

pub(crate) mod coordinator;
pub(crate) mod plans;
pub(crate) mod sandbox;
