//! What takes long. Base images, made for real: minutes each, and one of them needs Ubuntu's archive.
//! A worker's work that is killed at many moments of chance. Left out of `make test`; `make test-all` has
//! them.

mod common;
mod killing;

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use common::{World, as_user, shell};
use killing::{Moment, Target, kill_at, victim};
use longhaul_apptainer::base::{self, BaseError, UBUNTU_ARCHIVE};
use longhaul_apptainer::{BaseDefinition, BaseSource, Certificates, Sandbox};

/// A certificate of nobody's: it only has to be found again.
const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUVLh0QOaOmgsjq2PGg857J3Jd8nUwCgYIKoZIzj0EAwIw
IjEgMB4GA1UEAwwXTG9uZ2hhdWwgdGVzdCBhdXRob3JpdHkwIBcNMjYxMTMwMDQw
NzI2WhgPMjEyNjExMDYwNDA3MjZaMCIxIDAeBgNVBAMMF0xvbmdoYXVsIHRlc3Qg
YXV0aG9yaXR5MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEtO34K4aILX3Z1UTL
yIjJKTcr2/VzvTpP53jOdsg5ByfK4fD5Ry1beMDy4tYnUmyvjTYxbzhWPf0c7Nkd
Moc0A6NTMFEwHQYDVR0OBBYEFLC5yYnSIObR+6x8czdkHNSe2tGoMB8GA1UdIwQY
MBaAFLC5yYnSIObR+6x8czdkHNSe2tGoMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZI
zj0EAwIDSAAwRQIhAK5Q/Yyr6M65vNmio7luSXKEgUlkMYYUYZ7jZMNo39SRAiAM
2ENOh46pFoE4R7FTyGm6EFvMwQ0aQAZumMt0XLOWxw==
-----END CERTIFICATE-----
";

/// A sandbox over an image of its own.
async fn over(world: &World, id: &str, definition: &BaseDefinition) -> Result<Sandbox> {
    let folder = world.folder.path();
    let image = match &definition.source {
        // Kept for whoever wants it next: it takes minutes.
        BaseSource::Ubuntu2204 { .. } => {
            let images = world.image.parent().context("an image is in a folder")?;
            base::ensure(&world.apptainer, definition, images, &folder.join("work")).await?
        }
        _ => base::ensure(&world.apptainer, definition, &folder.join("images"), &folder.join("work")).await?,
    };
    let mut spec = world.spec(id);
    spec.image = image.path;
    Ok(Sandbox::start(&world.apptainer, spec).await?)
}

#[test]
fn ubuntu_has_what_scripts_expect_and_no_snaps() -> Result<()> {
    as_user("ubuntu_has_what_scripts_expect_and_no_snaps", async |world| {
        let definition = BaseSource::Ubuntu2204 { mirror: UBUNTU_ARCHIVE.to_owned() }.into();
        let sandbox = over(&world, "ubuntu", &definition).await?;
        let (_, release) = shell(&sandbox, "ga", ". /etc/os-release && echo $VERSION_ID").await?;
        ensure!(release == "22.04", "{release}");
        for line in [
            "sudo -n id -u | grep -qx 0",
            "for program in Xvfb openbox xdotool wmctrl scrot import ffmpeg python3 mksquashfs; do command -v $program; done",
            "python3 -c 'import numpy, scipy, pandas, openpyxl, docx, lxml, PIL, PyPDF2'",
            "systemctl --version",
            "test ! -e /etc/apt/sources.list.d/longhaul.list",
            "! apt-cache policy firefox | grep -q 'Candidate: [0-9]'",
        ] {
            let (code, output) = shell(&sandbox, "ga", line).await?;
            ensure!(code == 0, "`{line}`: {output}");
        }
        sandbox.stop().await?;
        Ok(())
    })
}

#[test]
fn an_image_trusts_the_certificates_that_are_set() -> Result<()> {
    as_user("an_image_trusts_the_certificates_that_are_set", async |world| {
        let file = world.folder.path().join("authority.pem");
        fs::write(&file, AUTHORITY)?;
        let definition =
            BaseDefinition { source: BaseSource::Sif(world.image.clone()), certificates: Certificates::read(&[file])? };
        let sandbox = over(&world, "trusting", &definition).await?;
        // A line of it that no other certificate has.
        let line = AUTHORITY.lines().nth(5).context("a line")?;
        for check in [
            format!("grep -qxF '{line}' /etc/ssl/certs/ca-certificates.crt"),
            "grep -q ca-certificates.crt /etc/pip.conf".to_owned(),
            "test $(stat -c %U /home/ga) = ga && sudo -n true".to_owned(),
        ] {
            let (code, output) = shell(&sandbox, "ga", &check).await?;
            ensure!(code == 0, "`{check}`: {output}");
        }
        sandbox.stop().await?;
        Ok(())
    })
}

#[test]
fn an_archive_that_is_not_there_is_named() -> Result<()> {
    as_user("an_archive_that_is_not_there_is_named", async |world| {
        let definition = BaseSource::Ubuntu2204 { mirror: "http://mirror.invalid/ubuntu".to_owned() }.into();
        let folder = world.folder.path();
        let error = base::ensure(&world.apptainer, &definition, &folder.join("images"), &folder.join("work")).await;
        match error {
            Err(BaseError::Unreachable { archive, .. }) => {
                ensure!(archive.contains("http://mirror.invalid/ubuntu"), "{archive}");
                Ok(())
            }
            other => Err(anyhow::anyhow!("{other:?}")),
        }
    })
}

/// What a victim says that it is at.
const PHASES: [&str; 5] = ["building", "starting", "showing", "acting", "stopping"];

/// Sixty moments, or as many as `LONGHAUL_TEST_KILLS` says, from the seed `LONGHAUL_TEST_SEED`: a
/// failure names its moment, and the same seed has it again.
#[test]
fn killed_at_many_moments_of_chance_nothing_is_left() -> Result<()> {
    let name = "killed_at_many_moments_of_chance_nothing_is_left";
    as_user(name, async |world| {
        if let Some(worked) = victim(&world).await {
            return worked;
        }
        let asked = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let (seed, count) = (asked("LONGHAUL_TEST_SEED").unwrap_or(1), asked("LONGHAUL_TEST_KILLS").unwrap_or(60));
        println!("seed {seed}, {count} kills");
        let mut state = seed;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut moments = Vec::new();
        for _ in 0..count {
            let phase = PHASES[usize::try_from(next(5))?];
            let target = match next(8) {
                0 if phase == PHASES[0] => Target::Packing,
                0 => Target::Apptainer,
                1 => Target::FileServer,
                2 => Target::WayOut,
                _ => Target::Worker,
            };
            moments.push(Moment { phase, after: Duration::from_millis(next(1500)), target });
        }
        let left = kill_at(&world, name, &moments).await?;
        println!("{left} times the janitor had to clear away what a living worker had left");
        Ok(())
    })
}
