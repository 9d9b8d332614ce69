//! `helper attach` as a process of its own: it gives its standard streams away.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The helper, told to become a program that speaks over a socket.
fn attach(socket: &Path, program: &str) -> Command {
    let mut helper = Command::new(env!("CARGO_BIN_EXE_longhaul-helper"));
    helper.arg("attach").arg(socket).arg(program).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    helper
}

#[test]
fn a_program_speaks_over_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let server = UnixListener::bind(&socket).unwrap();
    let mut program = attach(&socket, "/bin/cat").spawn().unwrap();
    let (mut stream, _) = server.accept().unwrap();
    stream.write_all(b"question").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut heard = String::new();
    stream.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "question");
    assert!(program.wait().unwrap().success());
}

#[test]
fn a_program_is_started_after_the_port_that_it_needs() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let server = UnixListener::bind(&socket).unwrap();
    // A port that is nobody's for now.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut helper = Command::new(env!("CARGO_BIN_EXE_longhaul-helper"));
    helper.args(["attach", "--after", &port.to_string()]).arg(&socket).args(["/bin/cat"]);
    let mut program = helper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    server.set_nonblocking(true).unwrap();
    for _ in 0..30 {
        assert!(server.accept().is_err(), "it was started without its port");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let _port = TcpListener::bind(("127.0.0.1", port)).unwrap();
    server.set_nonblocking(false).unwrap();
    let (stream, _) = server.accept().unwrap();
    drop(stream);
    assert!(program.wait().unwrap().success());
}

#[test]
fn what_cannot_be_started_is_said_with_the_shells_code() {
    let folder = tempfile::tempdir().unwrap();
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let nobody = folder.path().join("nobody");
    let output = attach(&nobody, "/bin/true").output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(said(&output).contains("nobody"), "{}", said(&output));
    let socket = folder.path().join("s");
    let _server = UnixListener::bind(&socket).unwrap();
    let output = attach(&socket, "/no/such/program").output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(said(&output).contains("/no/such/program"), "{}", said(&output));
}
