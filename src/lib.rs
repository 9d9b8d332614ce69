//! The `longhaul` command: its library, so that tests can reach its parts.
