//! The model gateway: whoever calls a model calls it through here.
//!
//! Each call is bounded, reserved, forwarded, settled by what the vendor reports, and recorded
//! with its request and response. The gateway has no coordinator, no store and no session: what
//! it needs of them are [`ports`].

mod account;
mod aside;
mod call;
mod config;
mod endpoint;
mod gateway;
mod http;
mod json;
mod pause;
pub mod ports;
mod protocol;
mod retry;
mod skeleton;

pub use account::{Account, Opening, PastCall, Replayed};
pub use call::{CallError, ModelAnswer, ModelCall};
pub use config::{GatewayConfig, GatewayError, Proxies};
pub use endpoint::{EndpointDown, EndpointShare, EndpointWord};
pub use gateway::Gateway;
pub use protocol::Surface;
pub use skeleton::{JoinError, join};
