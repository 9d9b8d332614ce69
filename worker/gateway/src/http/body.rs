//! Bodies of the gateway's own answers: whole, in pieces as they come, and long in coming.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;
use tokio::time::{Interval, interval};

use crate::account::{Failure, Reply};

/// A body of the server.
pub(super) type AnswerBody = UnsyncBoxBody<Bytes, BrokenOff>;

/// An answer that is still to come.
pub(super) type Coming = Pin<Box<dyn Future<Output = Result<Reply, Failure>> + Send>>;

/// An answer that ends before its end, so that its client sees that.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct BrokenOff(String);

/// A body that is there.
pub(super) fn whole(body: Bytes) -> AnswerBody {
    Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

/// A body out of a channel.
pub(super) struct Chunks {
    pieces: mpsc::UnboundedReceiver<Result<Bytes, String>>,
    /// Why it breaks off, once that has come.
    end: Option<BrokenOff>,
}

impl Chunks {
    pub(super) const fn new(pieces: mpsc::UnboundedReceiver<Result<Bytes, String>>) -> Self {
        Self { pieces, end: None }
    }
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        if let Some(end) = self.end.take() {
            return Poll::Ready(Some(Err(end)));
        }
        match self.pieces.poll_recv(context) {
            Poll::Ready(Some(Err(message))) => {
                // At once, it would take what was answered before it down with it, the head too:
                // the connection writes when there is nothing more to be had for now.
                self.end = Some(BrokenOff(message));
                context.waker().wake_by_ref();
                Poll::Pending
            }
            other => other.map(|chunk| chunk.map(|chunk| chunk.map(Frame::data).map_err(BrokenOff))),
        }
    }
}

/// The body of an answer whose head is out before it came. Blank lines say until then that it is still
/// waited for: they are nothing, before JSON and between events.
pub(super) struct LongComing {
    stage: Stage,
    beat: Interval,
}

enum Stage {
    Waiting(Coming),
    Answered(Chunks),
    Over,
}

impl LongComing {
    /// With a blank line at once, and then every so often.
    pub(super) fn new(call: Coming, every: Duration) -> Self {
        Self { stage: Stage::Waiting(call), beat: interval(every) }
    }
}

impl Body for LongComing {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let this = &mut *self;
        if let Stage::Waiting(call) = &mut this.stage {
            let Poll::Ready(ended) = call.as_mut().poll(context) else {
                return this.beat.poll_tick(context).map(|_| Some(Ok(Frame::data(Bytes::from_static(b"\n")))));
            };
            this.stage = match ended {
                Ok(reply) if (200..300).contains(&reply.status) => Stage::Answered(Chunks::new(reply.chunks)),
                // What was to be said by the status cannot be any more: whoever asks again hears it.
                Ok(_) | Err(_) => Stage::Over,
            };
        }
        match &mut this.stage {
            Stage::Answered(chunks) => Pin::new(chunks).poll_frame(context),
            Stage::Waiting(_) | Stage::Over => {
                Poll::Ready(Some(Err(BrokenOff("there is no answer, after a long wait".to_owned()))))
            }
        }
    }
}
