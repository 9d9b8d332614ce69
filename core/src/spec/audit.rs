//! validated_pi.json: an audit of what a checklist takes for true.

use serde::Serialize;
use serde_json::Value;

use super::Format;
use super::diagnostic::{Code, Diagnostic, Refused};
use super::json::{At, Document};

/// What an audit found, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AuditSummary {
    /// Items that hold.
    pub verified: u32,
    /// Items that do not.
    pub contradicted: u32,
    /// Items that could not be decided, or have another status.
    pub unverified: u32,
}

/// Reads an audit.
///
/// # Errors
///
/// It is not JSON, or not an object.
pub fn parse_audit(bytes: &[u8], out: &mut Vec<Diagnostic>) -> Result<AuditSummary, Refused> {
    let document = Document::parse(bytes, Format::Json, Code::AuditSyntax, out)?;
    if !document.value().is_object() {
        return Err(Diagnostic::new(Code::AuditSyntax, "an audit is an object").into());
    }
    let mut summary = AuditSummary::default();
    let items = document.value().get("pi_items").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut first = None;
    for (index, item) in items.iter().enumerate() {
        match item.get("status").and_then(Value::as_str) {
            Some("verified") => summary.verified += 1,
            Some("contradicted") => {
                summary.contradicted += 1;
                first = first.or(Some(index));
            }
            _ => summary.unverified += 1,
        }
    }
    if let Some(index) = first {
        let message = format!("{} of {} items are contradicted", summary.contradicted, items.len());
        let place = document.place(&[At::from("pi_items"), At::Item(index)]);
        out.push(Diagnostic::new(Code::AuditContradicted, message).at(place));
    }
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_counted_by_their_status() {
        let mut out = Vec::new();
        let text =
            br#"{"pi_items": [{"status": "verified"}, {"status": "contradicted"}, {}, {"status": "unverified"}]}"#;
        let summary = parse_audit(text, &mut out).unwrap();
        assert_eq!(summary, AuditSummary { verified: 1, contradicted: 1, unverified: 2 });
        assert_eq!(out[0].code, Code::AuditContradicted);
        assert!(parse_audit(b"[]", &mut out).is_err());
        assert_eq!(parse_audit(br#"{"x": "\d"}"#, &mut out).unwrap_err().0.code, Code::AuditSyntax);
    }
}
