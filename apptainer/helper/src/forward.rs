//! A port of the sandbox's own loopback that leads to a unix socket: how a program that knows
//! only addresses reaches what the worker serves, without any network.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::os;

/// The most connections at once; a further one is closed.
const MOST: usize = 256;

/// Serves until it is ended.
pub(crate) fn forward(port: u16, socket: &Path) -> i32 {
    let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(listener) => listener,
        Err(error) => {
            os::complain(&format!("helper: port {port}: {error}"));
            return 1;
        }
    };
    serve(&listener, socket);
    0
}

/// Serves the connections of a listener.
fn serve(listener: &TcpListener, socket: &Path) {
    let socket: Arc<PathBuf> = Arc::new(socket.to_owned());
    let open = Arc::new(AtomicUsize::new(0));
    for client in listener.incoming() {
        // A client that went away in the queue is no reason to stop.
        let Ok(client) = client else { continue };
        if open.fetch_add(1, Ordering::SeqCst) >= MOST {
            open.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let (socket, counter) = (Arc::clone(&socket), Arc::clone(&open));
        let started = std::thread::Builder::new().name("forward".to_owned()).spawn(move || {
            if let Err(error) = join(&client, &socket) {
                os::complain(&format!("helper: {}: {error}", socket.display()));
            }
            counter.fetch_sub(1, Ordering::SeqCst);
        });
        if started.is_err() {
            open.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Passes on what both sides say until both are done.
fn join(client: &TcpStream, socket: &Path) -> io::Result<()> {
    client.set_nodelay(true)?;
    let server = UnixStream::connect(socket)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let up = std::thread::Builder::new().name("forward-up".to_owned()).spawn(move || {
        // A side that breaks off is as good as done; the other one hears of it.
        let _ = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    })?;
    let (mut from_server, mut to_client) = (server, client.try_clone()?);
    let _ = io::copy(&mut from_server, &mut to_client);
    let _ = client.shutdown(Shutdown::Both);
    let _ = from_server.shutdown(Shutdown::Both);
    // It ended, or ends now that its client is closed.
    let _ = up.join();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn both_directions_are_passed_on_to_their_ends() {
        let folder = tempfile::tempdir().expect("folder");
        let socket = folder.path().join("s");
        let server = UnixListener::bind(&socket).expect("listens");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listens");
        let address = listener.local_addr().expect("address");
        std::thread::spawn(move || serve(&listener, &socket));
        for _ in 0..3 {
            let mut client = TcpStream::connect(address).expect("connects");
            let (mut served, _) = server.accept().expect("accepts");
            client.write_all(b"question").expect("writes");
            client.shutdown(Shutdown::Write).expect("shuts");
            let mut heard = String::new();
            served.read_to_string(&mut heard).expect("reads");
            assert_eq!(heard, "question");
            served.write_all(b"answer").expect("writes");
            drop(served);
            let mut answer = String::new();
            client.read_to_string(&mut answer).expect("reads");
            assert_eq!(answer, "answer");
        }
    }

    #[test]
    fn without_a_server_the_client_is_closed() {
        let folder = tempfile::tempdir().expect("folder");
        let socket = folder.path().join("nobody");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listens");
        let address = listener.local_addr().expect("address");
        std::thread::spawn(move || serve(&listener, &socket));
        let mut client = TcpStream::connect(address).expect("connects");
        let mut answer = Vec::new();
        assert!(matches!(client.read_to_end(&mut answer), Ok(0) | Err(_)));
    }
}
