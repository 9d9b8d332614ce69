//! The connection to one X server: over a unix socket whose path may be of any length,
//! and with a bound on every wait, so that a server that hangs never hangs us.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use x11rb::connection::{Connection, RequestConnection};
use x11rb::errors::ConnectionError;
use x11rb::protocol::Event;
use x11rb::rust_connection::{DefaultStream, PollMode, RustConnection, Stream};
use x11rb::utils::RawFdContainer;

use super::error::{ScreenError, during};

/// How long the server may say nothing while an answer is owed. A node where hundreds of
/// sandboxes start at once is slow, but not this slow.
pub(super) const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// The X client's own type, with our stream below it.
pub(super) type Client = RustConnection<BoundedStream>;

/// One connection.
#[derive(Debug)]
pub(super) struct Link {
    /// The X client.
    pub(super) client: Client,
    /// The same socket, to wait on it with a time limit and to end it from another thread.
    socket: UnixStream,
}

impl Link {
    /// Connects without authorisation: the socket's folder is what keeps others out.
    pub(super) fn connect(path: &Path) -> Result<Self, ScreenError> {
        let failed = |source| ScreenError::Connect { path: path.to_owned(), source };
        let socket = connect_any_length(path).map_err(failed)?;
        let copy = socket.try_clone().map_err(failed)?;
        let (stream, _peer) = DefaultStream::from_unix_stream(socket).map_err(failed)?;
        let client = RustConnection::connect_to_stream(BoundedStream(stream), 0)
            .map_err(|source| ScreenError::Refused { path: path.to_owned(), source })?;
        Ok(Self { client, socket: copy })
    }

    /// A second handle on the socket; shutting it down ends every wait on the link.
    pub(super) fn socket(&self) -> io::Result<UnixStream> {
        self.socket.try_clone()
    }

    /// The next event, waited for at most until `deadline`. Errors of requests that have
    /// no reply come here too.
    pub(super) fn event_before(&self, deadline: Instant, what: &'static str) -> Result<Option<Event>, ScreenError> {
        loop {
            self.client.flush().map_err(during(what))?;
            match self.client.poll_for_event().map_err(during(what))? {
                Some(Event::Error(error)) => {
                    return Err(ScreenError::Protocol { during: what, reason: format!("{error:?}") });
                }
                Some(event) => return Ok(Some(event)),
                None => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            wait(&self.socket, PollFlags::POLLIN, left)
                .map_err(|source| ScreenError::Lost { during: what, source: ConnectionError::IoError(source) })?;
        }
    }

    /// Waits until the server has handled all that was sent, and drops the events that
    /// came meanwhile (only damage and mapping notices are ever asked for; who needs the
    /// damage of now asks the server for its region).
    pub(super) fn sync(&self, what: &'static str) -> Result<(), ScreenError> {
        use x11rb::wrapper::ConnectionExt as _;
        self.client.sync().map_err(super::error::reply(what))?;
        let now = Instant::now();
        while self.event_before(now, what)?.is_some() {}
        Ok(())
    }

    /// Whether the server has an extension.
    pub(super) fn has(&self, name: &'static str) -> Result<bool, ScreenError> {
        Ok(self.client.extension_information(name).map_err(during("asking for its extensions"))?.is_some())
    }
}

/// Connects to a socket by way of its open folder: a path in a socket's address holds at
/// most 108 bytes, which a folder below a long $TMPDIR passes.
fn connect_any_length(path: &Path) -> io::Result<UnixStream> {
    let not_a_file = || io::Error::new(io::ErrorKind::InvalidInput, "not the path of a socket");
    let name = path.file_name().ok_or_else(not_a_file)?;
    let folder: File = OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC).bits())
        .open(path.parent().ok_or_else(not_a_file)?)?;
    let address = UnixAddr::new(&Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name))?;
    // Not blocking from the start: to connect to a stopped server with a full backlog
    // would otherwise wait without a limit.
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    let deadline = Instant::now() + SILENCE_LIMIT;
    loop {
        match connect(socket.as_raw_fd(), &address) {
            Ok(()) => return Ok(UnixStream::from(socket)),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The stream below the X client, with a limit on how long it waits.
#[derive(Debug)]
pub(super) struct BoundedStream(DefaultStream);

impl Stream for BoundedStream {
    fn poll(&self, mode: PollMode) -> io::Result<()> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::POLLIN, mode.readable());
        flags.set(PollFlags::POLLOUT, mode.writable());
        if wait(&self.0, flags, SILENCE_LIMIT)? { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    fn read(&self, buffer: &mut [u8], fds: &mut Vec<RawFdContainer>) -> io::Result<usize> {
        self.0.read(buffer, fds)
    }

    fn write(&self, buffer: &[u8], fds: &mut Vec<RawFdContainer>) -> io::Result<usize> {
        self.0.write(buffer, fds)
    }

    fn write_vectored(&self, buffers: &[io::IoSlice<'_>], fds: &mut Vec<RawFdContainer>) -> io::Result<usize> {
        self.0.write_vectored(buffers, fds)
    }
}

/// Waits for a socket; false when the time is over.
fn wait(socket: &impl AsFd, flags: PollFlags, limit: Duration) -> io::Result<bool> {
    // Rounded up, so that the last fraction of a millisecond is not spent spinning.
    let millis = u16::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
    match nix::poll::poll(&mut [PollFd::new(socket.as_fd(), flags)], PollTimeout::from(millis)) {
        Ok(ready) => Ok(ready > 0),
        // An interrupted wait may end early; whoever waits looks again.
        Err(Errno::EINTR) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}
