//! Points in time and durations, as Slurm writes them.
//!
//! Slurm writes times in the zone of whoever asks, unless `SLURM_TIME_FORMAT` says otherwise:
//! every question of ours says `%s`, so that they come as seconds since the Unix epoch.

use std::time::Duration;

/// What the environment of a question says for times to come as seconds.
pub(crate) const TIME_FORMAT: (&str, &str) = ("SLURM_TIME_FORMAT", "%s");

/// Seconds since the Unix epoch; `None` where Slurm knows no time.
pub(crate) fn instant(text: &str) -> Option<u64> {
    text.parse().ok().filter(|seconds| *seconds > 0)
}

/// `D-HH:MM:SS`, `HH:MM:SS` or `MM:SS`; `None` for what has no end and for words.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let mut parts = clock.split(':').map(|part| part.parse::<u64>().ok());
    let (first, second, third) = (parts.next()??, parts.next()??, parts.next());
    if parts.next().is_some() {
        return None;
    }
    let (hours, minutes, seconds) = match third {
        Some(third) => (first, second, third?),
        None => (0, first, second),
    };
    let hours = days.checked_mul(24)?.checked_add(hours)?;
    let minutes = hours.checked_mul(60)?.checked_add(minutes)?;
    minutes.checked_mul(60)?.checked_add(seconds).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_words_are_none() {
        for (text, seconds) in [
            ("10:00", Some(600)),
            ("1:00:00", Some(3600)),
            ("2-00:00:30", Some(172_830)),
            ("UNLIMITED", None),
            ("infinite", None),
            ("n/a", None),
            ("", None),
            ("1", None),
            ("1:2:3:4", None),
            ("99999999999999999999:00", None),
            ("99999999999999999-00:00:00", None),
        ] {
            assert_eq!(duration(text), seconds.map(Duration::from_secs), "{text:?}");
        }
    }

    #[test]
    fn a_time_that_slurm_does_not_know_is_none() {
        assert_eq!(instant("1700000000"), Some(1_700_000_000));
        for text in ["", "0", "N/A", "Unknown", "None", "-1"] {
            assert_eq!(instant(text), None, "{text:?}");
        }
    }
}
