//! Somebody else's program as an agent: JSON lines over its standard streams, in a sandbox of
//! its own (`docs/agents-protocol.md`).
//!
//! The program sees its own files, the screenshots that it is shown, and nothing of the task but
//! what it is told. Unless its plan says otherwise, it has no network but the gateway's socket,
//! which the helper serves as a port of the sandbox's own loopback.

mod launch;
mod lines;
mod talk;

pub(crate) use launch::{External, Launch, launch, told_endpoints};
pub(crate) use talk::{Left, Task};

/// The Python helper, and the adapter for Gym-Anything's own agents.
pub(crate) const PYTHON: [(&str, &str); 2] = [
    ("longhaul_agent.py", include_str!("../python/longhaul_agent.py")),
    ("longhaul_gym.py", include_str!("../python/longhaul_gym.py")),
];
