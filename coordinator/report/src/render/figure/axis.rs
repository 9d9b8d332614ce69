//! Axes: which values are marked, and where a value lies.

/// A range of values from 0 on that is laid out from one place to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis to the next round value above all of `values`.
    pub(super) fn over(values: impl IntoIterator<Item = f64>, from: f64, to: f64) -> Self {
        let highest = values.into_iter().filter(|value| value.is_finite()).fold(0.0, f64::max);
        let step = step(highest);
        let high = (highest / step).ceil() * step;
        Self { high: if high > 0.0 { high } else { 1.0 }, from, to }
    }

    /// An axis of rates and scores: 0 to 100.
    pub(super) const fn percent(from: f64, to: f64) -> Self {
        Self { high: 100.0, from, to }
    }

    /// Where a value lies; what is beyond the ends is at the end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = value / self.high;
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// The values that are marked: round ones, about five.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let step = step(self.high);
        let mut ticks = Vec::new();
        let mut value = 0.0;
        while value <= self.high + step / 1e6 && ticks.len() < 12 {
            ticks.push(value);
            value += step;
        }
        ticks
    }
}

/// A round step, a fifth of the way or so: 1, 2 or 5 times a power of ten.
fn step(high: f64) -> f64 {
    if !high.is_finite() || high <= 0.0 {
        return 0.2;
    }
    let rough = high / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let lead = rough / power;
    power
        * if lead <= 1.0 {
            1.0
        } else if lead <= 2.0 {
            2.0
        } else if lead <= 5.0 {
            5.0
        } else {
            10.0
        }
}

/// A value of dollars or steps for an axis: no more digits than it needs.
pub(super) fn short(value: f64) -> String {
    let text = if value >= 10.0 || value == 0.0 {
        format!("{value:.0}")
    } else if value >= 0.1 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_value_and_holds_all() {
        let axis = Axis::over([0.3, 4.7, f64::NAN, f64::INFINITY], 40.0, 440.0);
        assert_eq!((axis.high, axis.ticks()), (5.0, vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
        assert_eq!((axis.at(0.0), axis.at(5.0), axis.at(2.5), axis.at(9.0)), (40.0, 440.0, 240.0, 440.0));
        assert_eq!(Axis::over([500.0], 0.0, 1.0).ticks(), [0.0, 100.0, 200.0, 300.0, 400.0, 500.0]);
        assert_eq!(Axis::percent(100.0, 0.0).at(25.0), 75.0);
    }

    #[test]
    fn an_axis_over_nothing_is_an_axis_still() {
        let axis = Axis::over([], 0.0, 10.0);
        assert_eq!((axis.high, axis.at(0.0), axis.ticks().len()), (1.0, 0.0, 6));
    }

    #[test]
    fn marks_have_no_more_digits_than_they_need() {
        let shown: Vec<String> = [0.0, 0.002, 0.25, 1.0, 2.5, 40.0].into_iter().map(short).collect();
        assert_eq!(shown, ["0", "0.002", "0.25", "1", "2.5", "40"]);
    }
}
