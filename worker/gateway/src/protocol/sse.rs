//! Server-sent events, cut out of a stream as it comes.

use std::ops::Range;

/// The longest event that is looked at; a longer one passes unread.
const LONGEST: usize = 32 << 20;

/// Cuts a stream into events. An event is the bytes up to and with its empty line.
#[derive(Debug, Default)]
pub(crate) struct Events {
    held: Vec<u8>,
    /// Up to where the held bytes were searched.
    searched: usize,
}

impl Events {
    /// Takes the next bytes; gives the events that they complete.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.held.extend_from_slice(bytes);
        let mut events = Vec::new();
        let mut from = 0;
        while let Some(end) = self.end(from) {
            events.push(self.held[from..end].to_vec());
            from = end;
            self.searched = end;
        }
        self.held.drain(..from);
        self.searched = self.held.len().saturating_sub(3);
        if self.held.len() > LONGEST {
            events.push(self.rest());
        }
        events
    }

    /// What is left at the end of the stream.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        self.searched = 0;
        std::mem::take(&mut self.held)
    }

    /// Where the event that begins at `from` ends: past the first empty line.
    fn end(&self, from: usize) -> Option<usize> {
        let start = self.searched.max(from);
        let mut at = start;
        while let Some(found) = memchr::memchr2(b'\n', b'\r', self.held.get(at..)?) {
            let first = at + found;
            let line = line_end(&self.held, first)?;
            if let Some(next) = line_end(&self.held, line) {
                return Some(next);
            }
            // A lone carriage return at the end may be half of a line's end.
            at = line;
        }
        None
    }
}

/// Past the line's end at `at`, if there is one and it is whole.
fn line_end(bytes: &[u8], at: usize) -> Option<usize> {
    match (bytes.get(at)?, bytes.get(at + 1)) {
        (b'\n', _) => Some(at + 1),
        (b'\r', Some(b'\n')) => Some(at + 2),
        (b'\r', Some(_)) => Some(at + 1),
        _ => None,
    }
}

/// The data of an event, its lines joined.
pub(crate) fn data(event: &[u8]) -> Vec<u8> {
    let mut data: Option<Vec<u8>> = None;
    for line in lines(event) {
        let Some(value) = event[line].strip_prefix(b"data:") else { continue };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &mut data {
            Some(data) => {
                data.push(b'\n');
                data.extend_from_slice(value);
            }
            None => data = Some(value.to_vec()),
        }
    }
    data.unwrap_or_default()
}

fn lines(event: &[u8]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = event.get(at..).filter(|rest| !rest.is_empty())?;
        let length = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let line = at..at + length;
        at = (line.end + 1).min(event.len());
        Some(line)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn events_end_with_an_empty_line_of_any_kind() {
        for end in ["\n", "\r\n", "\r"] {
            let text =
                format!(": hello{end}{end}event: x{end}data: {{\"a\":{end}data: 1}}{end}{end}data:[DONE]{end}{end}.");
            let mut events = Events::default();
            let mut found = Vec::new();
            for byte in text.as_bytes() {
                found.extend(events.push(std::slice::from_ref(byte)));
            }
            let data: Vec<_> = found.iter().map(|event| String::from_utf8(data(event)).unwrap()).collect();
            assert_eq!(data, ["", "{\"a\":\n1}", "[DONE]"], "{end:?}");
            assert_eq!(events.rest(), b".");
        }
    }

    proptest! {
        /// However a stream is cut into pieces, its events are the same, and no byte is lost.
        #[test]
        fn pieces_do_not_matter(text in "[ab:d\n\r]{0,60}", cuts in proptest::collection::vec(1_usize..9, 0..30)) {
            let whole = {
                let mut events = Events::default();
                let mut found = events.push(text.as_bytes());
                found.push(events.rest());
                found
            };
            let mut events = Events::default();
            let (mut found, mut rest) = (Vec::new(), text.as_bytes());
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                found.extend(events.push(piece));
                rest = after;
            }
            found.extend(events.push(rest));
            found.push(events.rest());
            prop_assert_eq!(found.concat(), text.as_bytes());
            prop_assert_eq!(whole.concat(), text.as_bytes());
            prop_assert_eq!(found, whole);
        }
    }
}
