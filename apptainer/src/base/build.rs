//! Making an image: mmdebstrap and `apptainer build`, in a folder that goes afterwards.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tokio::process::Command;
use tokio::time::timeout;

use super::certificates::Certificates;
use super::definition::{self, BaseSource};
use super::{BaseError, io_error};
use crate::command;
use crate::program::{Apptainer, last_lines, on_path};
use crate::sandbox::end_session;
use crate::scratch::{MARK, Scratch};
use crate::session;

/// The log of what builds an image in `folder`. Kept beside the folder, which goes: a person
/// who reads of a failure can read all of it.
pub(super) fn log_of(folder: &Path) -> PathBuf {
    folder.with_extension("log")
}

/// Makes the image of a source in a folder.
pub(super) async fn source(
    apptainer: &Apptainer,
    source: &BaseSource,
    scratch: &mut Scratch,
) -> Result<PathBuf, BaseError> {
    let folder = scratch.path().to_owned();
    let Some(suite) = source.suite() else {
        return match source {
            BaseSource::Registry(address) => image(apptainer, Path::new(address), scratch).await,
            // A file that is there is not made.
            _ => Err(BaseError::Missing(folder)),
        };
    };
    let bootstrap = on_path("mmdebstrap").ok_or(BaseError::NoProgram("mmdebstrap"))?;
    let files = folder.join("definition");
    for (path, content, executable) in source.files() {
        write(&files.join(path), content, executable)?;
    }
    let root = folder.join("root.tar");
    let mut call = session::gated(&bootstrap);
    call.args(["--mode=unshare", "--variant=minbase", "--format=tar"])
        .arg(format!("--include={}", definition::packages()))
        .arg(format!("--customize-hook={}", files.join("customize").display()));
    if let BaseSource::Ubuntu2204 { .. } = source {
        call.arg(format!("--keyring={}", files.join("ubuntu/keys").display()))
            .arg(format!("--customize-hook={}", files.join("ubuntu/customize").display()));
    }
    call.arg(suite).arg(&root).env("TMPDIR", &folder);
    if let BaseSource::Ubuntu2204 { mirror } = source {
        let sources = folder.join("sources.list");
        write(&sources, &definition::ubuntu_sources(mirror), false)?;
        call.arg(sources);
    }
    run(apptainer, "mmdebstrap", call, scratch).await.map_err(|error| of_archive(error, source))?;
    let definition = folder.join("image.def");
    let template = include_str!("../../base/sif.def");
    write(&definition, &template.replace("@ROOTFS@", &root.display().to_string()), false)?;
    let image = image(apptainer, &definition, scratch).await?;
    fs::remove_file(&root).map_err(io_error(&root))?;
    Ok(image)
}

/// Makes an image in `folder` that is as another one, and trusts certificates beside those that
/// it trusts.
pub(super) async fn trusting(
    apptainer: &Apptainer,
    below: &Path,
    certificates: &Certificates,
    scratch: &mut Scratch,
) -> Result<PathBuf, BaseError> {
    let folder = scratch.path().to_owned();
    let files = folder.join("certificates");
    for (digest, text) in certificates.iter() {
        write(&files.join(format!("{}.crt", digest.short())), text, false)?;
    }
    let definition = folder.join("image.def");
    write(&definition, &definition::trusting_definition(below, &files), false)?;
    image(apptainer, &definition, scratch).await
}

/// Makes an image in a folder of what a definition file or an address names.
async fn image(apptainer: &Apptainer, from: &Path, scratch: &mut Scratch) -> Result<PathBuf, BaseError> {
    let image = scratch.path().join("image.sif");
    let mut call = apptainer.command(&command::build(&image, from));
    call.env("APPTAINER_TMPDIR", scratch.path());
    run(apptainer, "apptainer build", call, scratch).await?;
    Ok(image)
}

/// Writes a file, and the folders that it lies in.
fn write(path: &Path, content: &str, executable: bool) -> Result<(), BaseError> {
    let write = || -> io::Result<()> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mode = if executable { 0o755 } else { 0o644 };
        OpenOptions::new().create(true).write(true).mode(mode).open(path)?.write_all(content.as_bytes())
    };
    write().map_err(io_error(path))
}

/// The failure of what makes an image, told by its cause where that is the archive.
fn of_archive(error: BaseError, source: &BaseSource) -> BaseError {
    match error {
        BaseError::Failed { log, tail, .. }
            if fs::read(&log).is_ok_and(|text| definition::says_unreachable(&String::from_utf8_lossy(&text))) =>
        {
            BaseError::Unreachable { archive: source.archive(), log, tail }
        }
        other => other,
    }
}

/// Runs a gated call to its end, or ends it at its limit. It is known by the record of `scratch`.
async fn run(
    apptainer: &Apptainer,
    program: &'static str,
    mut call: Command,
    scratch: &mut Scratch,
) -> Result<(), BaseError> {
    let log = log_of(scratch.path());
    let file = OpenOptions::new().create(true).append(true).open(&log).map_err(io_error(&log))?;
    let too = file.try_clone().map_err(io_error(&log))?;
    let failed = || io_error(Path::new(program));
    call.env(MARK, scratch.mark()).stdout(file).stderr(too).kill_on_drop(true);
    let mut call = call.spawn().map_err(failed())?;
    let identity = session::identity(&call).map_err(failed())?;
    if let Some(identity) = identity.clone() {
        scratch.called(identity).map_err(Box::new)?;
    }
    drop(session::begin(&mut call).await.map_err(failed())?);
    let limit = apptainer.limits().build;
    let Ok(status) = timeout(limit, call.wait()).await else {
        if let Some(identity) = identity {
            end_session(scratch.mark(), &identity).await;
        }
        return Err(BaseError::TimeLimit { program, limit, log });
    };
    let status = status.map_err(failed())?;
    if status.success() {
        return Ok(());
    }
    let tail = last_lines(&fs::read(&log).unwrap_or_default(), 12);
    Err(BaseError::Failed { program, how: status.to_string(), log, tail })
}
