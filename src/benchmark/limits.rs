//! What an episode may use, and who says so: the command line over the run file, that over the
//! preset, that over the task, that over the settings.

use longhaul_core::budget::EpisodeBudget;
use longhaul_core::money::Money;
use longhaul_core::time::Millis;

/// What is said of an episode's limits in one place; what is not said there is left to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitTerms {
    /// The most steps, whatever the task says.
    pub steps: Option<u32>,
    /// The longest that an agent may act.
    pub time: Option<Millis>,
    /// The most dollars; `Some(None)` says that there is no cap.
    pub cost: Option<Option<Money>>,
    /// The most tokens; `Some(None)` says that there is no cap.
    pub tokens: Option<Option<u64>>,
}

impl LimitTerms {
    /// These, and of the others what these do not say.
    #[must_use]
    pub fn over(self, others: Self) -> Self {
        Self {
            steps: self.steps.or(others.steps),
            time: self.time.or(others.time),
            cost: self.cost.or(others.cost),
            tokens: self.tokens.or(others.tokens),
        }
    }
}

/// A protocol of the paper that introduces CUA-World.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// CUA-World-Test: 200 steps.
    Test,
    /// CUA-World-Long: 500 steps or $5, whichever comes first.
    Long500,
    /// CUA-World-Long: 2,000 steps without a cap.
    Long2000,
}

impl Preset {
    /// Every preset.
    pub const ALL: [Self; 3] = [Self::Test, Self::Long500, Self::Long2000];

    /// The name on the command line and in run files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Test => "cua-world-test",
            Self::Long500 => "cua-world-long-500",
            Self::Long2000 => "cua-world-long-2000",
        }
    }

    /// The preset of that name.
    ///
    /// # Errors
    ///
    /// There is none; the message says which there are.
    pub fn parse(word: &str) -> Result<Self, String> {
        let known = Self::ALL.map(Self::name);
        Self::ALL.into_iter().find(|preset| preset.name() == word).ok_or_else(|| {
            let hint = crate::nearest::hint(word, &known, |names| format!("there are {names}"));
            format!("there is no preset `{word}`: {hint}")
        })
    }

    /// The split whose tasks it means.
    #[must_use]
    pub const fn split(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Long500 | Self::Long2000 => "long_horizon",
        }
    }

    /// What it says of an episode's limits.
    #[must_use]
    pub const fn terms(self) -> LimitTerms {
        let (steps, cost) = match self {
            Self::Test => (200, None),
            Self::Long500 => (500, Some(Money::from_dollars(5))),
            Self::Long2000 => (2000, None),
        };
        LimitTerms { steps: Some(steps), time: None, cost: Some(cost), tokens: None }
    }
}

/// What an episode may use, as persons, the preset and the settings say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most steps, whatever the task says.
    pub steps: Option<u32>,
    /// The most steps of a task that does not say.
    pub default_steps: u32,
    /// The longest that an agent may act.
    pub time: Millis,
    /// The most dollars that all attempts of an episode may spend together.
    pub cost: Option<Money>,
    /// The most tokens of all model calls of an attempt.
    pub tokens: Option<u64>,
}

impl Limits {
    /// The most steps of a task that does not say, where nobody else does: as upstream.
    pub const DEFAULT_STEPS: u32 = 50;

    /// The longest that an agent may act, where nobody says: as upstream.
    pub const DEFAULT_TIME: Millis = Millis::from_secs(24 * 60 * 60);

    /// The limits that these terms and the settings make.
    #[must_use]
    pub fn of(terms: LimitTerms, default_steps: u32, default_time: Millis) -> Self {
        Self {
            steps: terms.steps,
            default_steps,
            time: terms.time.unwrap_or(default_time),
            cost: terms.cost.flatten(),
            tokens: terms.tokens.flatten(),
        }
    }

    /// The most steps of a task that asks for so many.
    #[must_use]
    pub fn steps(&self, task_steps: Option<u32>) -> u32 {
        self.steps.or(task_steps).unwrap_or(self.default_steps)
    }

    /// The budget of an episode of a task that asks for so many steps. The task's own
    /// `timeout_sec` is not used: it was chosen without the time that models take.
    #[must_use]
    pub fn budget(&self, task_steps: Option<u32>) -> EpisodeBudget {
        EpisodeBudget {
            max_steps: self.steps(task_steps),
            max_time: self.time,
            max_cost: self.cost,
            max_tokens: self.tokens,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::of(LimitTerms::default(), Self::DEFAULT_STEPS, Self::DEFAULT_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row for each pair of places that can both speak.
    #[test]
    fn the_nearer_voice_wins() {
        let said = |steps| LimitTerms { steps: Some(steps), ..LimitTerms::default() };
        let none = LimitTerms::default();
        let steps = |line: LimitTerms, file: LimitTerms, preset: Option<Preset>, task: Option<u32>| {
            let preset = preset.map(Preset::terms).unwrap_or_default();
            Limits::of(line.over(file).over(preset), 50, Limits::DEFAULT_TIME).steps(task)
        };
        let preset = Some(Preset::Test);
        assert_eq!(steps(said(1), said(2), preset, Some(4)), 1, "the command line over everything");
        assert_eq!(steps(none, said(2), preset, Some(4)), 2, "the run file over preset and task");
        assert_eq!(steps(none, none, preset, Some(4)), 200, "the paper's protocol over the task's max_steps");
        assert_eq!(steps(none, none, None, Some(4)), 4, "the task over the settings");
        assert_eq!(steps(none, none, None, None), 50, "the settings where nobody speaks");
    }

    #[test]
    fn a_cap_can_be_lifted_as_well_as_set() {
        let cost = |line: Option<Option<Money>>, preset: Preset| {
            let line = LimitTerms { cost: line, ..LimitTerms::default() };
            Limits::of(line.over(preset.terms()), 50, Limits::DEFAULT_TIME).cost
        };
        let dollars = Money::from_dollars;
        assert_eq!(cost(None, Preset::Long500), Some(dollars(5)));
        assert_eq!(cost(Some(None), Preset::Long500), None);
        assert_eq!(cost(None, Preset::Long2000), None);
        assert_eq!(cost(Some(Some(dollars(1))), Preset::Long2000), Some(dollars(1)));
    }

    #[test]
    fn a_mistyped_preset_is_told_apart() {
        assert_eq!(Preset::parse("cua-world-long-500"), Ok(Preset::Long500));
        assert!(Preset::parse("cua-world-long-50").unwrap_err().contains("did you mean `cua-world-long-500`?"));
        assert!(Preset::parse("xyzzy").unwrap_err().contains("there are cua-world-test"));
    }
}
