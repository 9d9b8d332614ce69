//! Frames over a blocking stream.

use std::io::{self, Read, Write};

use longhaul_core::helper::{
    FRAME_DATA, FRAME_HEADER, FRAME_JSON, HelperAnswer, HelperRequest, frame_header, parse_frame_header,
};

/// How much of a file goes into one frame.
pub(crate) const PIECE: usize = 256 * 1024;

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Writes one frame.
pub(crate) fn write_frame(stream: &mut impl Write, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let header = frame_header(kind, bytes.len()).ok_or_else(|| invalid("a frame is too long"))?;
    stream.write_all(&header)?;
    stream.write_all(bytes)
}

/// Reads one frame; nothing if the stream ends before it.
pub(crate) fn read_frame(stream: &mut impl Read) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut header = [0; FRAME_HEADER];
    let got = loop {
        match stream.read(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if got == 0 {
        return Ok(None);
    }
    stream.read_exact(header.get_mut(got..).unwrap_or_default())?;
    let (kind, length) = parse_frame_header(header).ok_or_else(|| invalid("not a frame"))?;
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(Some((kind, bytes)))
}

/// Reads a request; nothing if the caller is done.
pub(crate) fn read_request(stream: &mut impl Read) -> io::Result<Option<Result<HelperRequest, String>>> {
    match read_frame(stream)? {
        None => Ok(None),
        Some((FRAME_JSON, bytes)) => Ok(Some(serde_json::from_slice(&bytes).map_err(|error| error.to_string()))),
        Some(_) => Err(invalid("data where a request was expected")),
    }
}

/// Writes an answer.
pub(crate) fn write_answer(stream: &mut impl Write, answer: &HelperAnswer) -> io::Result<()> {
    write_frame(stream, FRAME_JSON, &serde_json::to_vec(answer)?)
}

/// Reads a stream of data frames, up to the empty one that ends it.
pub(crate) struct DataReader<'a, S> {
    stream: &'a mut S,
    piece: Vec<u8>,
    at: usize,
    ended: bool,
}

impl<'a, S: Read> DataReader<'a, S> {
    /// Reads what follows on `stream`.
    pub(crate) fn new(stream: &'a mut S) -> Self {
        Self { stream, piece: Vec::new(), at: 0, ended: false }
    }

    /// Reads what is left and drops it, so that the next request can be read.
    pub(crate) fn drain(&mut self) -> io::Result<()> {
        io::copy(self, &mut io::sink()).map(|_| ())
    }
}

impl<S: Read> Read for DataReader<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() && !self.ended {
            match read_frame(self.stream)? {
                Some((FRAME_DATA, bytes)) => {
                    self.ended = bytes.is_empty();
                    self.piece = bytes;
                    self.at = 0;
                }
                Some(_) => return Err(invalid("a request in the middle of data")),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let left = self.piece.get(self.at..).unwrap_or_default();
        let count = left.len().min(buffer.len());
        let (Some(from), Some(to)) = (left.get(..count), buffer.get_mut(..count)) else { return Ok(0) };
        to.copy_from_slice(from);
        self.at += count;
        Ok(count)
    }
}

/// Writes data as frames. Nothing marks the end until [`DataWriter::end`].
pub(crate) struct DataWriter<'a, S>(&'a mut S);

impl<'a, S: Write> DataWriter<'a, S> {
    /// Writes to `stream`.
    pub(crate) fn new(stream: &'a mut S) -> Self {
        Self(stream)
    }

    /// Ends the data in order.
    pub(crate) fn end(self) -> io::Result<()> {
        write_frame(self.0, FRAME_DATA, &[])
    }
}

impl<S: Write> Write for DataWriter<'_, S> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let piece = buffer.get(..buffer.len().min(PIECE)).unwrap_or_default();
        if !piece.is_empty() {
            write_frame(self.0, FRAME_DATA, piece)?;
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_goes_through_in_pieces_and_ends() {
        let data: Vec<u8> = (0..600_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        let mut wire = Vec::new();
        let mut writer = DataWriter::new(&mut wire);
        writer.write_all(&data).expect("writes");
        writer.end().expect("ends");
        write_answer(&mut wire, &HelperAnswer::Done).expect("writes");
        let mut stream = wire.as_slice();
        let mut back = Vec::new();
        DataReader::new(&mut stream).read_to_end(&mut back).expect("reads");
        assert!(back == data);
        assert_eq!(read_frame(&mut stream).expect("reads").map(|(kind, _)| kind), Some(FRAME_JSON));
        assert!(read_frame(&mut stream).expect("ends").is_none());
    }

    #[test]
    fn a_stream_that_breaks_off_is_an_error() {
        let mut wire = Vec::new();
        DataWriter::new(&mut wire).write_all(b"half").expect("writes");
        let mut stream = wire.as_slice();
        assert!(DataReader::new(&mut stream).drain().is_err());
    }
}
