//! YAML, for the few specs that are written in it.

use serde_json::Value;

use super::diagnostic::{Code, Diagnostic, Place, Refused};

/// Parses one YAML document into the value that JSON would give.
///
/// # Errors
///
/// It is not YAML, holds more than one document, or expands (through aliases) beyond
/// the parser's limits.
pub(super) fn parse(text: &str) -> Result<Value, Refused> {
    serde_saphyr::from_str::<Value>(text).map_err(|error| {
        let said = error.without_snippet().to_string();
        let place = error.location().map(|location| Place {
            line: u32::try_from(location.line()).unwrap_or(u32::MAX),
            column: u32::try_from(location.column()).unwrap_or(u32::MAX),
        });
        let said = said.lines().next().unwrap_or_default().chars().take(200).collect::<String>();
        Diagnostic::new(Code::YamlSyntax, format!("not YAML: {said}")).at(place).into()
    })
}
