//! A stream on its way through: read for its usage, and passed on byte by byte.

use bytes::Bytes;

use super::send::Came;
use crate::protocol::sse::{self, Events};
use crate::protocol::{Report, Surface};

/// What has passed so far.
#[derive(Debug)]
pub(super) struct Passing {
    surface: Surface,
    /// Usage was asked for by us alone: the event that is there for nothing else is left out.
    hides_usage: bool,
    events: Events,
    report: Report,
    body: Vec<u8>,
    came: Came,
}

impl Passing {
    pub(super) fn new(surface: Surface, hides_usage: bool, came: Came) -> Self {
        let mut report = Report::default();
        report.head(&came.headers);
        Self { surface, hides_usage, events: Events::default(), report, body: Vec::new(), came }
    }

    /// How many bytes came.
    pub(super) const fn received(&self) -> usize {
        self.body.len()
    }

    /// Takes what came; what of it the client sees now.
    pub(super) fn push(&mut self, data: &Bytes) -> Bytes {
        self.body.extend_from_slice(data);
        let mut seen = Vec::new();
        for event in self.events.push(data) {
            let alone = self.report.event(self.surface, &sse::data(&event));
            if self.hides_usage && !alone {
                seen.extend_from_slice(&event);
            }
        }
        if self.hides_usage { Bytes::from(seen) } else { data.clone() }
    }

    /// What the client has not seen yet, at the end of the stream.
    pub(super) fn rest(&mut self) -> Bytes {
        let rest = self.events.rest();
        // A last event may lack its empty line.
        let alone = self.report.event(self.surface, &sse::data(&rest));
        if self.hides_usage && !alone { Bytes::from(rest) } else { Bytes::new() }
    }

    /// Whether the answer has said that it is at its end.
    pub(super) const fn finished(&self) -> bool {
        self.report.finished
    }

    /// What came, for the record.
    pub(super) fn came(&mut self) -> Came {
        let mut came = std::mem::take(&mut self.came);
        came.body = Bytes::from(std::mem::take(&mut self.body));
        came.report = self.report.clone();
        came
    }
}
