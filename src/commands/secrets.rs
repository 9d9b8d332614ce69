//! `longhaul secrets`: keys of model vendors for a coordinator that runs already.

use std::io::Read;

use clap::{Args, Subcommand};
use longhaul_proto::v1;

use crate::cli::SourceArgs;
use crate::client::Source;
use crate::error::CliError;
use crate::output;
use crate::settings::Settings;

/// The longest key.
const MOST: u64 = 64 * 1024;

/// `longhaul secrets`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul secrets put ANTHROPIC_API_KEY --from-env --coordinator access.json
  pass show anthropic | longhaul secrets put ANTHROPIC_API_KEY --store results

`serve` and `run` take the keys that the settings name (`endpoint.NAME.key_env`) from their own
environment. A key is kept in the memory of the coordinator and of its workers, and nowhere else:
after a restart it is given again. It is never an argument, which others could read.")]
pub struct SecretsArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: SecretsCommand,
}

/// `longhaul secrets ...`
#[derive(Debug, Subcommand)]
pub enum SecretsCommand {
    /// Give a key to the coordinator, in place of the one that it has under that name.
    Put {
        /// The name that endpoints give (`endpoint.NAME.key_env`).
        #[arg(value_name = "NAME")]
        name: String,
        /// Takes it from the variable of that name, in place of stdin.
        #[arg(long)]
        from_env: bool,
        /// Which coordinator.
        #[command(flatten)]
        source: SourceArgs,
    },
}

/// Gives a key.
///
/// # Errors
///
/// There is no key, or no coordinator that takes it.
pub async fn secrets(args: SecretsArgs, settings: &Settings) -> Result<(), CliError> {
    let SecretsCommand::Put { name, from_env, source } = args.command;
    let source = Source::open(&source, settings).await?;
    let Source::Live(client) = &source else {
        let message = "no coordinator has that store open, and a key is kept in memory only: start one first";
        return Err(CliError::Usage(message.to_owned()));
    };
    let value = if from_env { std::env::var(&name).unwrap_or_default() } else { read_key(std::io::stdin().lock())? };
    let value = value.trim().to_owned();
    if value.is_empty() {
        let place = if from_env { format!("the variable {name} is not set") } else { "stdin is empty".to_owned() };
        return Err(CliError::Usage(format!("there is no key: {place}")));
    }
    let secrets = vec![v1::NamedSecret { name: name.clone(), value }];
    let request = v1::PutSecretsRequest { secrets };
    client.control.clone().put_secrets(request).await.map_err(client.refused("take the key"))?;
    output::note(&output::escape(&format!("{} has the key {name}, in memory only", source.place())));
    Ok(())
}

/// Reads a key, whole or not at all.
fn read_key(from: impl Read) -> Result<String, CliError> {
    let mut value = String::new();
    let read = from.take(MOST + 1).read_to_string(&mut value).map_err(|error| CliError::Machine(Box::new(error)))?;
    if read as u64 > MOST {
        return Err(CliError::Usage(format!("that is no key: stdin has more than {MOST} bytes")));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_whole_or_not_at_all() {
        assert_eq!(read_key(&b"sk-1\n"[..]).unwrap(), "sk-1\n");
        let most = usize::try_from(MOST).unwrap();
        assert_eq!(read_key(&vec![b'k'; most][..]).unwrap().len(), most);
        let refused = read_key(&vec![b'k'; most + 1][..]).unwrap_err();
        assert!(refused.to_string().contains("more than 65536 bytes"), "{refused}");
    }
}
