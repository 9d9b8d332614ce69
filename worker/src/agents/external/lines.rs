//! Lines of a stream that may send anything: each bounded, and the rest of a longer one skipped.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

/// The longest line that is read.
pub(super) const MOST_LINE: usize = 4 * 1024 * 1024;

/// How much of one line is skipped before it is a flood.
const MOST_FLOOD: u64 = 64 * 1024 * 1024;

/// A line, or what there was in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A line, without its end.
    Whole(Vec<u8>),
    /// A line of more than [`MOST_LINE`], which was skipped: so many bytes.
    TooLong(u64),
    /// More than [`MOST_FLOOD`] without an end of a line.
    Flood,
    /// The end of the stream.
    End,
}

/// The lines of a stream. Dropping [`Lines::next`] loses nothing.
#[derive(Debug)]
pub(super) struct Lines<R> {
    source: R,
    line: Vec<u8>,
    skipped: u64,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub(super) const fn new(source: R) -> Self {
        Self { source, line: Vec::new(), skipped: 0 }
    }

    pub(super) async fn next(&mut self) -> io::Result<Line> {
        loop {
            let piece = self.source.fill_buf().await?;
            if piece.is_empty() {
                // A last line without an end was not finished.
                return Ok(Line::End);
            }
            let end = piece.iter().position(|byte| *byte == b'\n');
            let part = &piece[..end.unwrap_or(piece.len())];
            if self.skipped > 0 || self.line.len() + part.len() > MOST_LINE {
                self.skipped += (self.line.len() + part.len()) as u64;
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(part);
            }
            let used = end.map_or(piece.len(), |end| end + 1);
            self.source.consume(used);
            if self.skipped > MOST_FLOOD {
                return Ok(Line::Flood);
            }
            if end.is_some() {
                let skipped = std::mem::take(&mut self.skipped);
                let line = std::mem::take(&mut self.line);
                return Ok(if skipped > 0 { Line::TooLong(skipped) } else { Line::Whole(line) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_bounded_and_a_long_one_costs_no_memory() {
        let mut bytes = b"one\n\n".to_vec();
        bytes.extend(std::iter::repeat_n(b'x', 3 * MOST_LINE));
        bytes.extend(b"\ntwo\nunfinished");
        let mut lines = Lines::new(bytes.as_slice());
        assert_eq!(lines.next().await.unwrap(), Line::Whole(b"one".to_vec()));
        assert_eq!(lines.next().await.unwrap(), Line::Whole(Vec::new()));
        assert_eq!(lines.next().await.unwrap(), Line::TooLong(3 * MOST_LINE as u64));
        assert_eq!(lines.next().await.unwrap(), Line::Whole(b"two".to_vec()));
        assert_eq!(lines.next().await.unwrap(), Line::End);
        assert!(lines.line.capacity() < 2 * MOST_LINE);
        assert_eq!(Lines::new(tokio::io::BufReader::new(tokio::io::repeat(b'x'))).next().await.unwrap(), Line::Flood);
    }
}
