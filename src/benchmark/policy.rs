//! Which envs may have a hook that fails.

use globset::{Glob, GlobMatcher};
use longhaul_core::plan::HookPolicy;

/// A policy that makes no sense.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{text}` is no hook policy: write `strict`, `tolerate`, or either with an env: `tolerate:ENV` (globs are fine)"
)]
pub struct PolicyError {
    text: String,
}

/// What becomes of layers whose hooks fail, env by env.
#[derive(Clone, Debug, Default)]
pub struct HookPolicies {
    default: HookPolicy,
    rules: Vec<(GlobMatcher, HookPolicy)>,
}

impl HookPolicies {
    /// Reads policies as they are written, over a default; later ones win.
    ///
    /// # Errors
    ///
    /// The first that makes no sense.
    pub fn parse<'t>(default: HookPolicy, texts: impl IntoIterator<Item = &'t str>) -> Result<Self, PolicyError> {
        let mut policies = Self { default, rules: Vec::new() };
        for text in texts {
            let error = || PolicyError { text: text.to_owned() };
            let (word, env) = text.split_once(':').unwrap_or((text, "*"));
            let policy = match word {
                "strict" => HookPolicy::Strict,
                "tolerate" => HookPolicy::Tolerate,
                _ => return Err(error()),
            };
            let glob = Glob::new(env).map_err(|_| error())?;
            policies.rules.push((glob.compile_matcher(), policy));
        }
        Ok(policies)
    }

    /// The policy of an env.
    #[must_use]
    pub fn of(&self, env: &str) -> HookPolicy {
        let rule = self.rules.iter().rev().find(|(glob, _)| glob.is_match(env));
        rule.map_or(self.default, |(_, policy)| *policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_policies_win() {
        let texts = ["tolerate:calc_*", "strict:calc_b"];
        let policies = HookPolicies::parse(HookPolicy::Strict, texts).unwrap();
        assert_eq!(policies.of("calc_a"), HookPolicy::Tolerate);
        assert_eq!(policies.of("calc_b"), HookPolicy::Strict);
        assert_eq!(policies.of("paint"), HookPolicy::Strict);
        assert_eq!(HookPolicies::parse(HookPolicy::Strict, ["tolerate"]).unwrap().of("x"), HookPolicy::Tolerate);
        for bad in ["", "lenient", "tolerate:[", "x:strict"] {
            assert!(HookPolicies::parse(HookPolicy::Strict, [bad]).is_err(), "{bad}");
        }
    }
}
