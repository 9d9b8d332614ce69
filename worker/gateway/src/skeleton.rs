//! Bodies as they are kept: a skeleton whose long parts are blobs of their own.
//!
//! An agent sends its whole history with each call. Kept whole, 500 calls with ten screenshots
//! each would take gigabytes for one episode; so a body is cut where its messages and its long
//! strings (images) begin and end, and each part is stored once. The list of parts itself grows
//! with the history too, so that runs of it become blobs as well: a run ends after a part whose
//! digest says so, whatever comes before it, and the runs of one call are those of the next.
//!
//! A body that is joined again is the one that was split, byte by byte; the skeleton has its
//! digest.

use std::collections::HashSet;
use std::ops::Range;

use bytes::Bytes;
use longhaul_core::digest::Digest;
use serde::{Deserialize, Serialize};

use crate::json;
use crate::ports::Blob;

/// Strings and messages shorter than this stay where they are.
const SHORT: usize = 256;

/// A long string is cut out of its message from this length on.
const LONG_STRING: usize = 4096;

/// Fewer parts than these are listed in the skeleton itself.
const FEW: usize = 64;

/// A run ends after so many pieces at the latest.
const LONG_RUN: usize = 96;

/// Top-level members whose elements are parts.
const LISTS: [&str; 3] = ["messages", "input", "contents"];

/// Top-level members that are a part each.
const WHOLE: [&str; 6] =
    ["tools", "system", "instructions", "systemInstruction", "system_instruction", "response_format"];

/// A body in its stored form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Skeleton {
    /// The digest of the whole body.
    of: Digest,
    pieces: Vec<Piece>,
}

/// A run of pieces that many skeletons share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    pieces: Vec<Piece>,
}

/// What a body is made of, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Piece {
    /// Text that stands here.
    Text(String),
    /// The bytes of a blob.
    Blob(Digest),
    /// The pieces of the run that is stored as this blob.
    Run(Digest),
}

/// A body that was split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// The skeleton.
    pub(crate) skeleton: Blob,
    /// Every blob that it names, itself or by a run; each once.
    pub(crate) parts: Vec<Blob>,
}

/// A stored body that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// A blob is not there.
    #[error("blob {digest} of the call is missing")]
    Missing {
        /// Its digest.
        digest: Digest,
    },
    /// A blob is not what it should be.
    #[error("blob {digest} is no part of a call: {message}")]
    Malformed {
        /// Its digest.
        digest: Digest,
        /// What is wrong.
        message: String,
    },
    /// The parts do not give the body that was split.
    #[error("the parts of the call do not give the body with digest {digest}")]
    Differs {
        /// The digest of the body.
        digest: Digest,
    },
}

/// Splits a body; one that is no JSON object is kept as one part.
pub(crate) fn split(body: &Bytes) -> Split {
    let mut parts = Parts::default();
    let mut pieces = Vec::new();
    let mut at = 0;
    for cut in cuts(body) {
        parts.between(body, at..cut.range().start, &mut pieces);
        at = cut.range().end;
        match cut {
            Cut::Part(range) => parts.part(body, range, &mut pieces),
            Cut::List(ranges, range) => {
                let mut list = Vec::new();
                let mut inside = range.start;
                for element in ranges {
                    parts.between(body, inside..element.start, &mut list);
                    inside = element.end;
                    parts.part(body, element, &mut list);
                }
                parts.between(body, inside..range.end, &mut list);
                parts.runs(list, &mut pieces);
            }
        }
    }
    parts.between(body, at..body.len(), &mut pieces);
    let skeleton = encode(&Skeleton { of: Digest::of(body), pieces });
    Split { skeleton, parts: parts.found }
}

/// The body whose skeleton is given, with the blobs that `blob` finds.
///
/// # Errors
///
/// A blob is missing, or the result is not the body that was split.
pub fn join(skeleton: &[u8], mut blob: impl FnMut(&Digest) -> Option<Vec<u8>>) -> Result<Vec<u8>, JoinError> {
    let malformed =
        |digest: Digest| move |error: serde_json::Error| JoinError::Malformed { digest, message: error.to_string() };
    let skeleton: Skeleton = serde_json::from_slice(skeleton).map_err(malformed(Digest::of(skeleton)))?;
    let mut body = Vec::new();
    for piece in skeleton.pieces {
        match piece {
            Piece::Run(digest) => {
                let run = blob(&digest).ok_or(JoinError::Missing { digest })?;
                let run: Run = serde_json::from_slice(&run).map_err(malformed(digest))?;
                for piece in run.pieces {
                    append(&mut body, piece, &mut blob)?;
                }
            }
            piece => append(&mut body, piece, &mut blob)?,
        }
    }
    if Digest::of(&body) != skeleton.of {
        return Err(JoinError::Differs { digest: skeleton.of });
    }
    Ok(body)
}

fn append(
    body: &mut Vec<u8>,
    piece: Piece,
    blob: &mut impl FnMut(&Digest) -> Option<Vec<u8>>,
) -> Result<(), JoinError> {
    match piece {
        Piece::Text(text) => body.extend_from_slice(text.as_bytes()),
        Piece::Blob(digest) => body.extend_from_slice(&blob(&digest).ok_or(JoinError::Missing { digest })?),
        Piece::Run(digest) => {
            return Err(JoinError::Malformed { digest, message: "a run within a run".to_owned() });
        }
    }
    Ok(())
}

/// Where a body is cut.
enum Cut {
    /// Around a part.
    Part(Range<usize>),
    /// Around the elements of an array, which is the second range.
    List(Vec<Range<usize>>, Range<usize>),
}

impl Cut {
    const fn range(&self) -> &Range<usize> {
        match self {
            Self::Part(range) | Self::List(_, range) => range,
        }
    }
}

/// The cuts of the outermost object, in order.
fn cuts(body: &[u8]) -> Vec<Cut> {
    let Some(members) = json::members(body, json::skip_space(body, 0)) else { return Vec::new() };
    let mut cuts = Vec::new();
    for member in members {
        let name = json::key(body, &member);
        let list = LISTS.contains(&name.as_ref()).then(|| json::elements(body, member.value.start)).flatten();
        match list {
            Some(elements) => cuts.push(Cut::List(elements, member.value)),
            None if WHOLE.contains(&name.as_ref()) => cuts.push(Cut::Part(member.value)),
            None => {}
        }
    }
    cuts
}

/// Collects blobs, each once.
#[derive(Default)]
struct Parts {
    known: HashSet<Digest>,
    found: Vec<Blob>,
}

impl Parts {
    fn blob(&mut self, bytes: Bytes) -> Digest {
        let digest = Digest::of(&bytes);
        if self.known.insert(digest) {
            self.found.push(Blob { digest, bytes });
        }
        digest
    }

    /// What stands between parts: text, or a part of its own where it is long or no text.
    fn between(&mut self, body: &Bytes, range: Range<usize>, pieces: &mut Vec<Piece>) {
        let bytes = body.slice(range);
        if bytes.is_empty() {
            return;
        }
        match short_text(&bytes, LONG_STRING) {
            Some(text) => match pieces.last_mut() {
                Some(Piece::Text(last)) => last.push_str(text),
                _ => pieces.push(Piece::Text(text.to_owned())),
            },
            None => pieces.push(Piece::Blob(self.blob(bytes))),
        }
    }

    /// A part, with its long strings cut out of it.
    fn part(&mut self, body: &Bytes, range: Range<usize>, pieces: &mut Vec<Piece>) {
        let mut at = range.start;
        for string in json::long_strings(&body[range.clone()], LONG_STRING) {
            let string = range.start + string.start..range.start + string.end;
            self.piece(body.slice(at..string.start), pieces);
            at = string.end;
            self.piece(body.slice(string), pieces);
        }
        self.piece(body.slice(at..range.end), pieces);
    }

    fn piece(&mut self, bytes: Bytes, pieces: &mut Vec<Piece>) {
        match short_text(&bytes, SHORT) {
            Some(text) => match pieces.last_mut() {
                // Short texts stay apart from each other where a run may end between them.
                Some(Piece::Text(last)) if last.len() < SHORT => last.push_str(text),
                _ => pieces.push(Piece::Text(text.to_owned())),
            },
            None => pieces.push(Piece::Blob(self.blob(bytes))),
        }
    }

    /// Puts the pieces of a list into runs, if they are many.
    fn runs(&mut self, list: Vec<Piece>, pieces: &mut Vec<Piece>) {
        if list.len() < FEW {
            pieces.extend(list);
            return;
        }
        let mut run = Vec::new();
        for piece in list {
            let ends = matches!(&piece, Piece::Blob(digest) if digest.as_bytes()[0] < 16);
            run.push(piece);
            if ends || run.len() >= LONG_RUN {
                let blob = encode(&Run { pieces: std::mem::take(&mut run) });
                pieces.push(Piece::Run(self.blob(blob.bytes)));
            }
        }
        pieces.extend(run);
    }
}

/// The bytes as text, if they are text shorter than that; what is long is not looked at.
fn short_text(bytes: &[u8], limit: usize) -> Option<&str> {
    Some(bytes).filter(|bytes| bytes.len() < limit).and_then(|bytes| std::str::from_utf8(bytes).ok())
}

fn encode(value: &impl Serialize) -> Blob {
    let bytes = serde_json::to_vec(value).expect("invariant: a list of texts and digests is JSON");
    Blob { digest: Digest::of(&bytes), bytes: bytes.into() }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn joined(split: &Split) -> Result<Vec<u8>, JoinError> {
        let blobs: HashMap<_, _> = split.parts.iter().map(|blob| (blob.digest, blob.bytes.to_vec())).collect();
        join(&split.skeleton.bytes, |digest| blobs.get(digest).cloned())
    }

    fn message(index: usize) -> Value {
        let image = format!("{index:08}").repeat(1_000);
        json!({ "role": "user", "content": [
            { "type": "text", "text": format!("step {index}: {}", "what is on the screen now? ".repeat(12)) },
            { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": image } },
        ] })
    }

    fn history(steps: Range<usize>) -> Bytes {
        let messages: Vec<_> = steps.map(message).collect();
        json!({ "model": "m", "system": "s".repeat(500), "messages": messages }).to_string().into()
    }

    #[test]
    fn a_long_history_costs_what_is_new_in_it() {
        let mut seen = HashSet::new();
        let (mut stored, mut bodies, mut last) = (0, 0, 0);
        for step in 1..=150 {
            let body = history(0..step);
            let split = split(&body);
            assert_eq!(joined(&split).unwrap(), body);
            let new = |blob: &Blob| if seen.contains(&blob.digest) { 0 } else { blob.bytes.len() };
            last = split.skeleton.bytes.len() + split.parts.iter().map(new).sum::<usize>();
            seen.extend(split.parts.iter().map(|blob| blob.digest));
            stored += last;
            bodies += body.len();
        }
        // One message of some 8 kB is new with each call.
        assert!(last < 20_000, "the 150th call costs {last} bytes");
        assert!(stored * 25 < bodies, "{stored} bytes for bodies of {bodies}");
    }

    #[test]
    fn what_leaves_at_the_front_does_not_change_the_runs_behind() {
        let (full, slid) = (split(&history(0..300)), split(&history(40..300)));
        let known: HashSet<_> = full.parts.iter().map(|blob| blob.digest).collect();
        let new: usize =
            slid.parts.iter().filter(|blob| !known.contains(&blob.digest)).map(|blob| blob.bytes.len()).sum();
        assert!(new < 20_000, "{new} new bytes");
    }

    #[test]
    fn what_was_changed_or_lost_is_noticed() {
        let split = split(&history(0..3));
        let error = join(&split.skeleton.bytes, |_| None).unwrap_err();
        assert!(matches!(error, JoinError::Missing { .. }));
        let error = join(&split.skeleton.bytes, |_| Some(b"other".to_vec())).unwrap_err();
        assert!(matches!(error, JoinError::Differs { .. }));
        assert!(matches!(join(b"{}", |_| None), Err(JoinError::Malformed { .. })));
    }

    proptest! {
        #[test]
        fn any_bytes_come_back_as_they_were(body in proptest::collection::vec(any::<u8>(), 0..600)) {
            let body = Bytes::from(body);
            prop_assert_eq!(joined(&split(&body)).unwrap(), body);
        }

        #[test]
        fn any_request_comes_back_as_it_was(
            texts in proptest::collection::vec(("\\PC{0,20}", 0_usize..600), 0..90),
            pretty: bool,
        ) {
            let messages: Vec<_> = texts.iter().map(|(text, times)| json!({ "content": text.repeat(*times) })).collect();
            let value = json!({ "input": messages, "tools": [{ "name": "x".repeat(300) }], "max": 3 });
            let body = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) };
            let body = Bytes::from(body.unwrap());
            prop_assert_eq!(joined(&split(&body)).unwrap(), body);
        }
    }
}
