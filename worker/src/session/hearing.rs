//! Whether the coordinator has heard a report.
//!
//! Reports have no answer of their own, and a session may be lost with one on its way. But a
//! coordinator hears one session's messages in their order, and answers a heartbeat only after
//! what it heard before is durable: so a report is kept until a heartbeat that was sent after it,
//! in the same session, is answered, and is sent again in every session until then. The
//! coordinator takes a repeated one for no news.

use super::Uplink;

/// How far one report has come.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    /// The session that it was last handed to.
    session: Option<u64>,
    /// The heartbeat of that session whose answer says that it was heard.
    heard_by: Option<u64>,
}

impl Hearing {
    /// Whether this session was not handed it yet.
    pub(super) fn is_due(&self, uplink: &Uplink) -> bool {
        self.session != Some(uplink.generation)
    }

    /// Whether no session was handed it yet.
    pub(super) const fn is_new(&self) -> bool {
        self.session.is_none()
    }

    /// This session was handed it.
    pub(super) const fn handed(&mut self, uplink: &Uplink) {
        *self = Self { session: Some(uplink.generation), heard_by: None };
    }

    /// A heartbeat of this number is about to be sent, and the session is drained: the heartbeat
    /// follows what the session was handed.
    pub(super) fn before_heartbeat(&mut self, uplink: &Uplink, sequence: u64) {
        if !self.is_due(uplink) {
            self.heard_by.get_or_insert(sequence);
        }
    }

    /// Whether the answer to the session's heartbeat of this number says that it was heard.
    pub(super) fn is_heard(&self, uplink: &Uplink, sequence: u64) -> bool {
        !self.is_due(uplink) && self.heard_by.is_some_and(|by| by <= sequence)
    }
}
