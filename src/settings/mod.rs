//! The settings file: TOML, strict, with every default written out in `default.toml`.

mod load;
mod model;
mod slurm;

pub use load::{DEFAULTS, SettingsError, load, parse};
pub use model::{
    BaseSettings, CoordinatorSettings, LayerSettings, PathSettings, ProxySettings, RunSettings, Settings,
    WorkerSettings,
};
pub use slurm::{PoolSettings, SlurmSettings};
