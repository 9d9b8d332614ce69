//! The settings file: TOML, strict, with every default written out in `default.toml`.

mod endpoints;
mod load;
mod model;
mod slurm;

pub use endpoints::{EndpointSettings, PriceSettings, harness};
pub use load::{DEFAULTS, SettingsError, load, parse};
pub use model::{
    BaseSettings, Carry, CoordinatorSettings, LayerSettings, PathSettings, ProxySettings, RunSettings, Settings,
    WorkerSettings,
};
pub use slurm::{PoolSettings, SlurmSettings};
