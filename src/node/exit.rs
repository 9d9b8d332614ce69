//! The exit codes of `longhaul`: documented, and the same in every command.

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It did what was asked. Episodes that failed are data, not an error.
    Success,
    /// Something that was not foreseen.
    Unexpected,
    /// The command line makes no sense.
    Usage,
    /// An input is not there or is wrong: a spec, a task, an agent, a run file, a price, a key, the
    /// settings.
    Input,
    /// This machine lacks something: Apptainer, user ids, disk.
    Machine,
    /// The store is locked, of an unknown format, or damaged.
    Store,
    /// The coordinator cannot be reached, or refuses.
    Coordinator,
    /// The run ended, and episodes of it are faulted (only with `--fail-on-fault`), or could not
    /// be judged again.
    Faulted,
    /// A signal stopped it.
    Interrupted,
}

impl Exit {
    /// The number that the process ends with.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Success => 0,
            Self::Unexpected => 1,
            Self::Usage => 2,
            Self::Input => 3,
            Self::Machine => 4,
            Self::Store => 5,
            Self::Coordinator => 6,
            Self::Faulted => 7,
            Self::Interrupted => 130,
        }
    }
}

/// The codes as `longhaul --help` shows them.
pub const HELP: &str = "\
Exit codes:
  0    done; verdicts of episodes, failed ones too, are data
  1    an error that was not foreseen
  2    the command line is wrong
  3    an input is missing or wrong: benchmark, task, agent, run file, price, key, settings
  4    this machine lacks something: Apptainer, user ids, disk (see `longhaul doctor`)
  5    the store is locked, of an unknown format, or damaged
  6    the coordinator cannot be reached, or refuses
  7    episodes of the run are faulted (only with --fail-on-fault), or could not be judged again
  130  interrupted";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_code() {
        for exit in [
            Exit::Success,
            Exit::Unexpected,
            Exit::Usage,
            Exit::Input,
            Exit::Machine,
            Exit::Store,
            Exit::Coordinator,
            Exit::Faulted,
            Exit::Interrupted,
        ] {
            let start = format!("  {} ", exit.code());
            assert!(HELP.lines().any(|line| line.starts_with(&start)), "{exit:?}");
        }
    }
}
