//! Lengths of time and sizes as people write them (`90s`, `2h`, `1h30m`, `20GiB`), and points in
//! time as they read them.

use longhaul_core::time::Millis;

/// A text that is not a length of time or a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a length of time.
    #[error("`{0}` is not a length of time; write `30s`, `5m`, `2h` or `1h30m`")]
    Duration(String),
    /// Not a size.
    #[error("`{0}` is not a size; write `512MiB` or `20GiB`")]
    Size(String),
}

/// Reads a length of time: numbers with `ms`, `s`, `m`, `h` or `d`, one after another.
///
/// # Errors
///
/// The text is something else, or longer than can be counted.
pub fn duration(text: &str) -> Result<Millis, UnitError> {
    let error = || UnitError::Duration(text.to_owned());
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(error());
    }
    let mut total = 0_u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(error)?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let factor = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(error()),
        };
        let number: u64 = number.parse().map_err(|_| error())?;
        total = number.checked_mul(factor).and_then(|part| total.checked_add(part)).ok_or_else(error)?;
        rest = tail.trim_start();
    }
    Ok(Millis(total))
}

/// Reads a size in bytes: a number with `B`, `KiB`, `MiB`, `GiB` or `TiB`.
///
/// # Errors
///
/// The text is something else, or larger than can be counted.
pub fn size(text: &str) -> Result<u64, UnitError> {
    let error = || UnitError::Size(text.to_owned());
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit()).ok_or_else(error)?;
    let (number, unit) = trimmed.split_at(digits);
    let shift = match unit.trim_start() {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return Err(error()),
    };
    let number: u64 = number.parse().map_err(|_| error())?;
    number.checked_mul(1 << shift).ok_or_else(error)
}

/// A length of time for tables: the two largest units.
#[must_use]
pub fn show_duration(length: Millis) -> String {
    let secs = length.0 / 1000;
    match secs {
        0 => format!("{}ms", length.0),
        1..60 => format!("{}.{}s", secs, length.0 % 1000 / 100),
        60..3600 => format!("{}m{:02}s", secs / 60, secs % 60),
        3600..86_400 => format!("{}h{:02}m", secs / 3600, secs % 3600 / 60),
        _ => format!("{}d{:02}h", secs / 86_400, secs % 86_400 / 3600),
    }
}

/// A size for tables.
#[must_use]
pub fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut scale = 1_u64;
    while bytes / scale >= 1024 && unit + 1 < UNITS.len() {
        scale *= 1024;
        unit += 1;
    }
    let whole = bytes / scale;
    if unit == 0 { format!("{whole} B") } else { format!("{whole}.{} {}", bytes % scale * 10 / scale, UNITS[unit]) }
}

/// A point in time for people: local, to the second.
#[must_use]
pub fn show_time(millis: u64) -> String {
    i64::try_from(millis)
        .ok()
        .filter(|millis| *millis > 0)
        .and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok())
        .map(|at| at.to_zoned_datetime(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read_and_shown() {
        for (text, millis) in [("90s", 90_000), ("1h30m", 5_400_000), ("250ms", 250), ("2d", 172_800_000), ("0s", 0)] {
            assert_eq!(duration(text), Ok(Millis(millis)), "{text}");
        }
        for bad in ["", "5", "s", "5x", "-5s", "1.5h", "99999999999999999999h", "999999999999999999d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(show_duration(Millis(90_000)), "1m30s");
        assert_eq!(show_duration(Millis(1_250)), "1.2s");
    }

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes) in [("0B", 0), ("1KiB", 1024), ("20 GiB", 20 << 30)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "20", "20GB", "GiB", "-1GiB", "99999999999TiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!(show_size(1536), "1.5 KiB");
        assert_eq!(show_size(12), "12 B");
    }
}
