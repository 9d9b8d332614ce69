//! Judges a verifier by its text: whether its function is there, can be called, and
//! decides anything.

use super::python::{Line, Literal, Token, lines, literal};
use crate::spec::{Code, Diagnostic, Place};

/// What a verifier's text says about the function that a task names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerifierVerdict {
    /// It decides something.
    Decides,
    /// It passes everything: every way out gives the same passing constant.
    AlwaysPasses,
    /// It fails everything.
    AlwaysFails,
    /// There is no such function at the top of the file.
    Missing,
    /// It cannot be called with (traj, env_info, task_info).
    Signature,
    /// The file is no Python: it is cut short, or a string or bracket is not closed.
    Broken,
}

impl VerifierVerdict {
    /// Why nothing that it says can be trusted, if so.
    #[must_use]
    pub const fn distrust(&self) -> Option<&'static str> {
        match self {
            Self::Decides => None,
            Self::AlwaysPasses => Some("the verifier is a stub: it passes everything"),
            Self::AlwaysFails => Some("the verifier is a stub: it fails everything"),
            Self::Missing => Some("the verifier has no such function"),
            Self::Broken => Some("the verifier does not parse"),
            Self::Signature => Some("the verifier's function takes other arguments"),
        }
    }
}

/// Callables that verifiers ask for and that no Gym-Anything gives.
const UNKNOWN_HELPERS: &[&str] = &["exec_in_env", "run_in_env", "vlm_query"];

/// Text that an authoring tool leaks into files.
const LEAK: &str = "<system-reminder>";

/// A diagnostic for a block of prompt text that an authoring tool leaked into a file.
#[must_use]
pub fn leaked_block(text: &str) -> Option<Diagnostic> {
    let place = crate::spec::place_at(text, text.find(LEAK)?);
    Some(Diagnostic::new(Code::LeakedText, "the file holds a leaked block of prompt text").at(place))
}

/// Judges the function `name` of a verifier's text, with a diagnostic for all that is odd.
#[must_use]
pub fn judge_verifier(text: &str, name: &str, out: &mut Vec<Diagnostic>) -> VerifierVerdict {
    out.extend(leaked_block(text));
    let (lines, broken) = lines(text);
    if let Some(line) = broken {
        let message = "a string or bracket is not closed";
        out.push(Diagnostic::new(Code::VerifierSyntax, message).at(Place { line, column: 1 }));
        return VerifierVerdict::Broken;
    }
    for helper in UNKNOWN_HELPERS {
        if let Some(line) = lines.iter().find(|line| asks_for(line, helper)) {
            let message = format!("it asks for `{helper}`, which there is not");
            out.push(Diagnostic::new(Code::VerifierUnknownHelper, message).at(start(line)));
        }
    }
    let Some((index, place)) = find_function(&lines, name) else {
        if binds(&lines, name) {
            return VerifierVerdict::Decides;
        }
        let message = format!("there is no function `{name}` at the top of the file");
        out.push(Diagnostic::new(Code::VerifierFunctionMissing, message));
        return VerifierVerdict::Missing;
    };
    if !takes_three(&lines[index].tokens) {
        out.push(
            Diagnostic::new(Code::VerifierSignature, format!("`{name}` cannot be called with three arguments"))
                .at(place),
        );
        return VerifierVerdict::Signature;
    }
    let (returns, leaves) = ways_out(&lines, index);
    let verdict = constant_verdict(&returns, leaves);
    let code = match verdict {
        VerifierVerdict::AlwaysPasses => Code::StubVerifier,
        VerifierVerdict::AlwaysFails => Code::StubVerifierFails,
        _ => return verdict,
    };
    let word = if code == Code::StubVerifier { "pass" } else { "fail" };
    let message = format!("every `return` of `{name}` is the same constant {word}");
    let first = returns.first().map(|(line, _)| Place { line: *line, column: 1 });
    out.push(Diagnostic::new(code, message).at(first));
    verdict
}

fn start(line: &Line<'_>) -> Place {
    Place { line: line.number, column: u32::try_from(line.indent).unwrap_or(u32::MAX).saturating_add(1) }
}

/// Whether a line takes a helper out of `env_info`: by its name as a string.
fn asks_for(line: &Line<'_>, helper: &str) -> bool {
    line.tokens
        .windows(2)
        .any(|pair| matches!(pair, [Token::Sign('(' | '['), Token::Text { content, .. }] if *content == helper))
}

/// The lines that are not within a function or a class, with their indices.
fn top_level<'l, 'a>(lines: &'l [Line<'a>]) -> impl Iterator<Item = (usize, &'l Line<'a>)> {
    let mut within: Option<usize> = None;
    lines.iter().enumerate().filter(move |(_, line)| {
        if within.is_some_and(|indent| line.indent > indent) {
            return false;
        }
        within = opens_scope(line).then_some(line.indent);
        true
    })
}

fn opens_scope(line: &Line<'_>) -> bool {
    matches!(line.first(), Some("def" | "class"))
        || matches!(line.tokens.as_slice(), [Token::Name("async"), Token::Name("def"), ..])
}

/// The line that defines a function at the top: the last one, as Python would have it.
fn find_function(lines: &[Line<'_>], name: &str) -> Option<(usize, Place)> {
    let defines = |line: &Line<'_>| matches!(line.tokens.as_slice(), [Token::Name("def"), Token::Name(known), ..] if *known == name);
    top_level(lines).filter(|(_, line)| defines(line)).last().map(|(index, line)| (index, start(line)))
}

/// Whether a name is bound at the top in another way: imported, or assigned.
fn binds(lines: &[Line<'_>], name: &str) -> bool {
    top_level(lines).any(|(_, line)| match line.tokens.as_slice() {
        [Token::Name("from" | "import"), rest @ ..] => {
            rest.iter().any(|token| matches!(token, Token::Name(known) if *known == name))
                || rest.ends_with(&[Token::Name("import"), Token::Sign('*')])
        }
        [Token::Name(known), Token::Sign('='), next, ..] => *known == name && *next != Token::Sign('='),
        _ => false,
    })
}

/// Whether a function can be called with three positional arguments.
fn takes_three(tokens: &[Token<'_>]) -> bool {
    let mut depth = 0_usize;
    let (mut all, mut required, mut any, mut keyword_only) = (0, 0, false, false);
    let mut parameter: Vec<&Token<'_>> = Vec::new();
    for token in tokens {
        match token {
            Token::Sign('(' | '[' | '{') => {
                depth += 1;
                if depth == 1 {
                    continue;
                }
            }
            Token::Sign(')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        let ends = depth == 0 || (depth == 1 && *token == Token::Sign(','));
        if depth >= 1 && !ends {
            parameter.push(token);
        }
        if ends && !parameter.is_empty() {
            match parameter.as_slice() {
                [Token::Sign('*'), Token::Sign('*'), ..] | [Token::Sign('/')] => {}
                [Token::Sign('*')] => keyword_only = true,
                [Token::Sign('*'), ..] => (any, keyword_only) = (true, true),
                others => {
                    let has_default = others.contains(&&Token::Sign('='));
                    if keyword_only && !has_default {
                        return false;
                    }
                    all += usize::from(!keyword_only);
                    required += usize::from(!keyword_only && !has_default);
                }
            }
            parameter.clear();
        }
        if depth == 0 && *token == Token::Sign(')') {
            break;
        }
    }
    required <= 3 && (any || all >= 3)
}

/// What the `return`s of a function give (none: something computed), each with its line,
/// and whether it may leave by raising.
fn ways_out(lines: &[Line<'_>], index: usize) -> (Vec<(u32, Option<Literal>)>, bool) {
    let Some((head, rest)) = lines.get(index..).and_then(<[Line<'_>]>::split_first) else { return (Vec::new(), false) };
    let mut returns = Vec::new();
    let mut raises = false;
    // A body may stand on the line of the `def`, after its colon.
    collect_returns(head, &mut returns, &mut raises);
    let mut nested: Option<usize> = None;
    for line in rest.iter().take_while(|line| line.indent > head.indent) {
        if nested.is_some_and(|indent| line.indent > indent) {
            continue;
        }
        nested = opens_scope(line).then_some(line.indent);
        if nested.is_none() {
            collect_returns(line, &mut returns, &mut raises);
        }
    }
    (returns, raises)
}

fn collect_returns(line: &Line<'_>, returns: &mut Vec<(u32, Option<Literal>)>, raises: &mut bool) {
    let mut depth = 0_usize;
    let mut starts = true;
    for (at, token) in line.tokens.iter().enumerate() {
        match token {
            Token::Sign('(' | '[' | '{') => depth += 1,
            Token::Sign(')' | ']' | '}') => depth = depth.saturating_sub(1),
            Token::Name("return") if starts => {
                let rest = line.tokens.get(at + 1..).unwrap_or_default();
                let end = rest.iter().position(|token| *token == Token::Sign(';')).unwrap_or(rest.len());
                let value = rest.get(..end).unwrap_or_default();
                let value = if value.is_empty() { Some(Literal::Nothing) } else { literal(value) };
                returns.push((line.number, value));
            }
            Token::Name("raise" | "assert" | "yield") if starts => *raises = true,
            _ => {}
        }
        // A statement starts a line, or follows a colon or semicolon outside of brackets.
        starts = depth == 0 && matches!(token, Token::Sign(':' | ';'));
    }
}

/// What constants decide: all that they say of passing and score must be the same.
fn constant_verdict(returns: &[(u32, Option<Literal>)], raises: bool) -> VerifierVerdict {
    let mut said = Vec::new();
    for (_, value) in returns {
        let Some(value) = value else { return VerifierVerdict::Decides };
        said.push(decision(value));
    }
    match said.first() {
        Some((passed, _)) if said.iter().all(|other| Some(other) == said.first()) => {
            match (*passed, raises) {
                // One that raises is not passed, so it decides.
                (true, true) => VerifierVerdict::Decides,
                (true, false) => VerifierVerdict::AlwaysPasses,
                (false, _) => VerifierVerdict::AlwaysFails,
            }
        }
        _ => VerifierVerdict::Decides,
    }
}

/// Whether a constant passes, and its score.
fn decision(value: &Literal) -> (bool, Option<f64>) {
    let score = match value.get("score") {
        Some(Literal::Number(score)) => Some(*score),
        _ => None,
    };
    let passed = match (value, value.get("passed")) {
        (_, Some(passed)) => passed.is_true(),
        (Literal::Dict(_), None) => score.is_some_and(|score| score > 0.0),
        (other, None) => other.is_true(),
    };
    (passed, score)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(text: &str) -> (VerifierVerdict, Vec<Code>) {
        let mut out = Vec::new();
        let verdict = judge_verifier(text, "verify", &mut out);
        (verdict, out.into_iter().map(|found| found.code).collect())
    }

    #[test]
    fn a_constant_pass_is_a_stub() {
        for body in [
            "    \"\"\"Stub.\"\"\"\n    return {\"passed\": True, \"score\": 100, \"feedback\": \"see the checklist\"}\n",
            "    return {\n        'passed': True,  # always\n        'score': 100,\n    }\n",
            "    if not traj:\n        return {'passed': True, 'score': 1, 'feedback': 'a'}\n    return {'passed': True, 'score': 1}\n",
            "    def inner():\n        return traj\n    return True\n",
            "    x = lambda: traj\n    if x: return {'score': 100}\n    else: return {'score': 100}\n",
        ] {
            let (verdict, codes) = judge(&format!("import os\n\ndef verify(traj, env_info, task_info):\n{body}"));
            assert_eq!((verdict, codes), (VerifierVerdict::AlwaysPasses, vec![Code::StubVerifier]), "{body}");
        }
        let (verdict, _) = judge("def verify(traj, env_info, task_info): return {'passed': True, 'score': 100}\n");
        assert_eq!(verdict, VerifierVerdict::AlwaysPasses);
    }

    #[test]
    fn what_decides_anything_is_none() {
        for body in [
            "    return check(traj)\n",
            "    if not traj:\n        return {'passed': False, 'score': 0}\n    return {'passed': True, 'score': 100}\n",
            "    score = 100\n    return {'passed': True, 'score': score}\n",
            "    if not traj:\n        raise ValueError('no')\n    return {'passed': True, 'score': 100}\n",
            "    return {'passed': True, 'score': 100, 'feedback': f'{traj}'}\n",
            "    return {'passed': True} if traj else {'passed': True}\n",
            "    print('return {\\'passed\\': True}')\n",
        ] {
            let (verdict, codes) = judge(&format!("def verify(traj, env_info, task_info):\n{body}"));
            assert_eq!((verdict, codes), (VerifierVerdict::Decides, vec![]), "{body}");
        }
    }

    #[test]
    fn a_constant_fail_is_a_stub_too() {
        let text = "def verify(traj, env_info, task_info):\n    if not traj:\n        return {'passed': False, 'score': 0, 'feedback': 'a'}\n    return {'passed': False, 'score': 0}\n";
        assert_eq!(judge(text), (VerifierVerdict::AlwaysFails, vec![Code::StubVerifierFails]));
    }

    #[test]
    fn a_file_that_is_cut_short_is_broken() {
        let text = "def verify(a, b, c):\n    if a:\n        return {'passed': False}\n    x = a.strip('";
        assert_eq!(judge(text), (VerifierVerdict::Broken, vec![Code::VerifierSyntax]));
    }

    #[test]
    fn the_last_function_of_a_name_counts() {
        let text = "def verify(a, b, c):\n    return x\nclass K:\n    def verify(self):\n        return y\nif True:\n    def verify(a, b, c):\n        return True\n";
        assert_eq!(judge(text).0, VerifierVerdict::AlwaysPasses);
    }

    #[test]
    fn a_function_that_is_not_there_or_not_at_the_top_is_missing() {
        for text in
            ["", "def verify_other(a, b, c):\n    return x\n", "class K:\n    def verify(a, b, c):\n        return x\n"]
        {
            assert_eq!(judge(text), (VerifierVerdict::Missing, vec![Code::VerifierFunctionMissing]), "{text}");
        }
        for text in [
            "from shared import verify\n",
            "verify = other\n",
            "from shared import *\n",
            "from x import (\n  y as verify,\n)\n",
        ] {
            assert_eq!(judge(text), (VerifierVerdict::Decides, vec![]), "{text}");
        }
    }

    #[test]
    fn arguments_are_counted() {
        for (parameters, fits) in [
            ("traj, env_info, task_info", true),
            ("traj: Dict[str, Any], env_info: dict = {'a': (1, 2)}, task_info=None, **more", true),
            ("*args", true),
            ("a, b, c, d=1", true),
            ("task_data", false),
            ("a, b, c, d", false),
            ("a, b, c, *, d", false),
            ("", false),
        ] {
            let text = format!("def verify({parameters}) -> Dict[str, Any]:\n    return check(1)\n");
            let expected = if fits { VerifierVerdict::Decides } else { VerifierVerdict::Signature };
            assert_eq!(judge(&text).0, expected, "{parameters}");
        }
    }

    #[test]
    fn helpers_that_do_not_exist_and_leaked_text_are_named() {
        let text = "def verify(a, env_info, c):\n    run = env_info.get('exec_in_env')\n    return run(a)\n# <system-reminder>\n";
        assert_eq!(judge(text).1, [Code::LeakedText, Code::VerifierUnknownHelper]);
    }
}
