//! Whole episodes of every kind of agent: a worker, a coordinator, the gateway and a vendor that
//! answer each other over real sockets; only the sandbox is a folder.

mod external;
mod judging;
mod models;
mod rounds;
mod scene;
mod snapshots;
