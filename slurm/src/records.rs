//! Records with a separator that nobody can write: names and comments are free text, with
//! pipes and line ends if somebody likes, so each client has a random one.

/// An answer that is not what the program writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the answer of {program}: {reason}")]
pub struct Malformed {
    /// Who answered.
    pub program: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

/// The separator of one client.
pub(crate) fn separator(nonce: u64) -> String {
    format!("~{nonce:016x}~")
}

/// The argument of `squeue -O` and `sinfo -O`: each field whole (a width of 0 cuts nothing), and after
/// each the separator.
pub(crate) fn format_argument(fields: &[&str], separator: &str) -> String {
    let field = |name: &&str| format!("{name}:0{separator}");
    fields.iter().map(field).collect::<Vec<_>>().join(",")
}

/// Splits what has the separator after each field and a line end after each record.
pub(crate) fn split<'a, const N: usize>(
    program: &'static str,
    text: &'a str,
    separator: &str,
) -> Result<Vec<[&'a str; N]>, Malformed> {
    let malformed = |reason: String| Malformed { program, reason };
    let mut rest = text;
    let mut records = Vec::new();
    while !rest.is_empty() {
        let mut record = [""; N];
        for field in &mut record {
            (*field, rest) = rest
                .split_once(separator)
                .ok_or_else(|| malformed(format!("record {} ends too early", records.len() + 1)))?;
        }
        rest = rest.strip_prefix('\n').ok_or_else(|| malformed(format!("record {} has no end", records.len() + 1)))?;
        records.push(record);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_in_a_field_ends_neither_field_nor_record() {
        let separator = separator(7);
        let text = format!("1{separator}a|b\nc{separator}\n2{separator}{separator}\n");
        assert_eq!(split::<2>("squeue", &text, &separator), Ok(vec![["1", "a|b\nc"], ["2", ""]]));
    }

    #[test]
    fn an_answer_that_was_cut_is_an_error_and_not_a_shorter_answer() {
        let separator = separator(7);
        let whole = format!("1{separator}a{separator}\n2{separator}b{separator}\n");
        let one = whole.find('\n').map(|at| at + 1);
        for cut in 1..whole.len() {
            let result = split::<2>("squeue", &whole[..cut], &separator);
            assert_eq!(result.is_ok(), Some(cut) == one, "{cut}");
        }
    }

    proptest! {
        #[test]
        fn any_fields_come_back(fields in proptest::collection::vec(("[^~]{0,20}", "\\PC{0,20}"), 0..8), nonce: u64) {
            let separator = separator(nonce);
            let text: String =
                fields.iter().map(|(a, b)| format!("{a}{separator}{b}{separator}\n")).collect();
            let read = split::<2>("squeue", &text, &separator).unwrap();
            let read: Vec<(String, String)> =
                read.iter().map(|[a, b]| ((*a).to_owned(), (*b).to_owned())).collect();
            prop_assert_eq!(read, fields);
        }
    }
}
