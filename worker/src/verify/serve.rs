//! The worker's end of the verifier's socket: its callables, answered from the episode's
//! live sandbox.

use std::io;
use std::path::Path;

use longhaul_core::helper::CommandSpec;
use longhaul_gateway::CallError;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use super::decide::{Outcome, Questions};
use crate::judge::{JudgeError, Media, Oracle, Query};
use crate::sandbox::{Sandbox, SandboxError};

/// The longest line that is read: an outcome with all that a verifier returned.
const MAX_LINE: u64 = 32 * 1024 * 1024;

/// How long one command of `exec_capture` may run.
const EXEC_LIMIT_MILLIS: u64 = 120_000;

/// The most output of one command.
const EXEC_OUTPUT: usize = 4 * 1024 * 1024;

/// The most bytes of the pictures of one question to the judge.
const MOST_PICTURES: u64 = 64 * 1024 * 1024;

/// The most bytes that are copied in one piece.
const PIECE: usize = 256 * 1024;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op")]
enum Request {
    CopyFrom {
        path: String,
    },
    CopyTo {
        path: String,
    },
    Exec {
        command: String,
    },
    /// A question to the judge; its pictures follow, each in pieces.
    Query {
        prompt: String,
        images: u32,
        max_tokens: u32,
    },
    Outcome {
        outcome: Outcome,
    },
}

#[derive(Debug, Deserialize)]
struct Piece {
    piece: u64,
}

/// How a conversation ended.
#[derive(Debug, Default)]
pub(crate) struct Served {
    /// What the runner reported.
    pub(crate) outcome: Option<Outcome>,
    /// Why the sandbox could not do what was asked for, the first time it could not: then
    /// what the verifier made of it says nothing about the agent.
    pub(crate) broken: Option<SandboxError>,
    /// What it asked the judge.
    pub(crate) questions: Questions,
    /// The attempt was over before the judge could be asked.
    pub(crate) over: Option<CallError>,
}

/// Serves one runner until it reports or hangs up. `scratch` is a folder for files on their way,
/// and `oracle` the judge, or why there is none.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    sandbox: &dyn Sandbox,
    scratch: &Path,
    oracle: Result<&Oracle<'_>, &str>,
    served: &mut Served,
) -> io::Result<()> {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = BufReader::new(reader);
    while let Some(request) = line::<Request>(&mut reader).await? {
        let result = match request {
            Request::Outcome { outcome } => {
                served.outcome = Some(outcome);
                return Ok(());
            }
            Request::CopyFrom { path } => copy_from(sandbox, &path, scratch, &mut writer).await?,
            Request::CopyTo { path } => copy_to(sandbox, &path, scratch, &mut reader, &mut writer).await?,
            Request::Exec { command } => exec(sandbox, command, &mut writer).await?,
            Request::Query { prompt, images, max_tokens } => {
                let pictures = pictures(&mut reader, images).await?;
                let query = Query { prompt, pictures, max_output: max_tokens };
                let answer = ask(oracle, query, served).await;
                say(&mut writer, &answer).await?;
                continue;
            }
        };
        if let Err(error) = result {
            let answer = match &error {
                SandboxError::NotFound { path } => json!({"not_found": path}),
                other => {
                    if matches!(other, SandboxError::Gone(_) | SandboxError::Disk(_)) {
                        served.broken.get_or_insert_with(|| other.clone());
                    }
                    json!({"error": other.to_string()})
                }
            };
            say(&mut writer, &answer).await?;
        }
    }
    Ok(())
}

/// The pictures of a question; what is none, and what is too much, is left out.
async fn pictures(from: &mut (impl AsyncBufReadExt + Unpin), images: u32) -> io::Result<Vec<(Media, Vec<u8>)>> {
    let (mut pictures, mut left) = (Vec::new(), MOST_PICTURES);
    for _ in 0..images {
        let mut bytes = Vec::new();
        let mut whole = true;
        while let Some(length) = next_piece(from).await? {
            whole = whole && length <= left;
            if whole {
                left -= length;
                copy_piece(from, length, &mut bytes).await?;
            } else {
                // Read to its end all the same: the next picture comes after it.
                copy_piece(from, length, &mut tokio::io::sink()).await?;
            }
        }
        if let Some(media) = Media::of(&bytes).filter(|_| whole) {
            pictures.push((media, bytes));
        }
    }
    Ok(pictures)
}

/// The judge's answer in the form that the runner hands on.
async fn ask(oracle: Result<&Oracle<'_>, &str>, query: Query, served: &mut Served) -> serde_json::Value {
    let oracle = match oracle {
        Ok(oracle) => oracle,
        Err(reason) => return json!({"unanswered": reason}),
    };
    served.questions.open = true;
    let answered = oracle.answer(query).await;
    served.questions.open = false;
    match answered {
        Ok(text) => {
            served.questions.answered += 1;
            json!({"text": text})
        }
        Err(error) => {
            let why = error.to_string();
            served.questions.unanswered = Some(why.clone());
            if let JudgeError::Over(error) = error {
                served.over.get_or_insert(error);
            }
            json!({"unanswered": why})
        }
    }
}

type Answered = io::Result<Result<(), SandboxError>>;

async fn copy_from(sandbox: &dyn Sandbox, path: &str, scratch: &Path, out: &mut (impl AsyncWrite + Unpin)) -> Answered {
    let on_the_way = scratch.join("out");
    let folder = match is_folder(sandbox, path).await {
        Ok(folder) => folder,
        Err(error) => return Ok(Err(error)),
    };
    let copied =
        if folder { sandbox.pack_out(path, &on_the_way).await } else { sandbox.copy_out(path, &on_the_way).await };
    if let Err(error) = copied {
        return Ok(Err(error));
    }
    let mut file = tokio::fs::File::open(&on_the_way).await?;
    say(out, &if folder { json!({"tree": true}) } else { json!({"file": true}) }).await?;
    let mut buffer = vec![0; PIECE];
    loop {
        let length = file.read(&mut buffer).await?;
        say(out, &json!({"piece": length})).await?;
        if length == 0 {
            break;
        }
        out.write_all(&buffer[..length]).await?;
    }
    tokio::fs::remove_file(&on_the_way).await?;
    Ok(Ok(()))
}

async fn is_folder(sandbox: &dyn Sandbox, path: &str) -> Result<bool, SandboxError> {
    let test = CommandSpec {
        argv: ["test", "-d", path].map(str::to_owned).to_vec(),
        user: "root".to_owned(),
        cwd: Some("/".to_owned()),
        limit_millis: 10_000,
        output_limit: 256,
        ..CommandSpec::default()
    };
    Ok(sandbox.run(test).await?.code == 0)
}

async fn copy_to(
    sandbox: &dyn Sandbox,
    path: &str,
    scratch: &Path,
    from: &mut (impl AsyncBufReadExt + Unpin),
    out: &mut (impl AsyncWrite + Unpin),
) -> Answered {
    let on_the_way = scratch.join("in");
    let mut file = tokio::fs::File::create(&on_the_way).await?;
    while let Some(length) = next_piece(from).await? {
        copy_piece(from, length, &mut file).await?;
    }
    file.flush().await?;
    drop(file);
    let result = sandbox.copy_in(&on_the_way, path).await;
    tokio::fs::remove_file(&on_the_way).await?;
    if result.is_ok() {
        say(out, &json!({})).await?;
    }
    Ok(result)
}

async fn exec(sandbox: &dyn Sandbox, command: String, out: &mut (impl AsyncWrite + Unpin)) -> Answered {
    let command = CommandSpec {
        argv: vec!["bash".to_owned(), "-lc".to_owned(), command],
        user: "root".to_owned(),
        env: [("DISPLAY".to_owned(), ":1".to_owned())].into(),
        limit_millis: EXEC_LIMIT_MILLIS,
        output_limit: EXEC_OUTPUT,
        ..CommandSpec::default()
    };
    match sandbox.run(command).await {
        Ok(result) => {
            say(out, &json!({"output": result.output})).await?;
            Ok(Ok(()))
        }
        Err(error) => Ok(Err(error)),
    }
}

/// The length of the next piece of what the runner sends; none after the last one.
async fn next_piece(from: &mut (impl AsyncBufReadExt + Unpin)) -> io::Result<Option<u64>> {
    match line(from).await? {
        Some(Piece { piece }) => Ok(Some(piece).filter(|length| *length > 0)),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

async fn copy_piece(
    from: &mut (impl AsyncBufReadExt + Unpin),
    length: u64,
    into: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let copied = tokio::io::copy(&mut (&mut *from).take(length), into).await?;
    if copied == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

async fn say(out: &mut (impl AsyncWrite + Unpin), message: &serde_json::Value) -> io::Result<()> {
    out.write_all(format!("{message}\n").as_bytes()).await?;
    out.flush().await
}

/// The next line; none if the runner has hung up, also in the middle of a line.
async fn line<T: for<'de> Deserialize<'de>>(from: &mut (impl AsyncBufReadExt + Unpin)) -> io::Result<Option<T>> {
    let mut bytes = Vec::new();
    (&mut *from).take(MAX_LINE).read_until(b'\n', &mut bytes).await?;
    if bytes.last() != Some(&b'\n') {
        return Ok(None);
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
