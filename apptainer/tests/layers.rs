//! Real layers: hooks run in real sandboxes, are packed, and are found again.

mod common;

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use common::{World, as_user, shell};
use longhaul_apptainer::layers::build::{self, BuildError, BuildRequest};
use longhaul_apptainer::layers::{LayerContent, LayerGuard, LayerManifest, LayerStore};
use longhaul_apptainer::{Sandbox, janitor};
use longhaul_core::digest::Digest;
use longhaul_core::plan::{AccountPlan, HookPolicy};
use longhaul_core::time::{Millis, Timestamp};

/// A build over these layers, of the hook `hook`.
async fn request(world: &World, id: &str, hook: &str, below: &[&LayerGuard]) -> Result<BuildRequest> {
    let mut sandbox = world.spec(id);
    sandbox.layers = below.iter().filter_map(|layer| layer.path()).map(PathBuf::from).collect();
    Ok(BuildRequest {
        key: Digest::of(hook.as_bytes()),
        env: "thing_env".into(),
        hook: hook.into(),
        limit: Millis::from_secs(120),
        policy: HookPolicy::Strict,
        accounts: Vec::new(),
        parents: Vec::new(),
        overlay_driver: world.apptainer.overlay_driver(&world.image, world.folder.path()).await?,
        inputs: Vec::new(),
        units: below.iter().flat_map(|layer| layer.manifest.units.clone()).collect(),
        screen: (1024, 768),
        sandbox,
        created: Timestamp(1),
    })
}

async fn taken(store: &LayerStore, manifest: &LayerManifest) -> Result<LayerGuard> {
    store.use_layer(&manifest.key).await?.context("a layer that was just published is there")
}

#[test]
fn a_stack_shows_what_its_hooks_left() -> Result<()> {
    as_user("a_stack_shows_what_its_hooks_left", |world| async move {
        let store = LayerStore::open(&world.folder.path().join("layers"), None)?;
        let install = "set -e; echo 1 >/opt/one; echo install >/opt/both; mkdir -p /opt/dir && touch /opt/dir/old; \
            rm /etc/debian_version; echo x >/var/cache/apt/archives/big.deb; su - ga -c 'echo hi >~/Desktop/note; echo t >/tmp/kept'; \
            gpasswd -d clerk video; printf '[Service]\\nExecStart=/bin/sleep 601\\n' >/etc/systemd/system/nap.service; systemctl start nap; sleep 600 &";
        let mut wanted = request(&world, "install", install, &[]).await?;
        wanted.accounts = vec![AccountPlan {
            name: "clerk".into(),
            uid: Some(1234),
            groups: vec!["audio".into(), "video".into()],
            shell: "/bin/bash".into(),
            sudo: false,
            password: Some("a b:c".into()),
            env_vars: [("WORD".to_owned(), "two words'".to_owned())].into(),
        }];
        let first = build::install(&world.apptainer, &store, &wanted).await?;
        ensure!(first.units == ["nap.service"] && matches!(first.content, LayerContent::File { .. }), "{first:?}");
        let first = taken(&store, &first).await?;

        let configure = "echo configure >/opt/both; rm -r /opt/dir; mkdir /opt/dir; touch /opt/dir/new; systemctl is-active nap >/opt/nap; \
            DISPLAY=:1 xdpyinfo | awk '/dimensions/ {print $2}' >/opt/screen; su - ga -c 'touch ~/mine'; dbus-launch true";
        let accounts = wanted.accounts;
        let wanted = BuildRequest { accounts, ..request(&world, "configure", configure, &[&first]).await? };
        let second = build::configure(&world.apptainer, &store, &wanted).await?;
        ensure!(matches!(second.content, LayerContent::File { .. }), "{second:?}");
        let second = taken(&store, &second).await?;

        let mut spec = world.spec("over");
        spec.layers = [&first, &second].into_iter().filter_map(|layer| layer.path()).map(PathBuf::from).collect();
        let sandbox = Sandbox::start(&world.apptainer, spec).await?;
        let cases = [
            ("cat /opt/one /opt/both", "1\nconfigure"),
            ("ls /opt/dir", "new"),
            ("cat /opt/nap /opt/screen /tmp/kept", "active\n1024x768\nt"),
            ("ls /etc/debian_version 2>/dev/null || echo gone", "gone"),
            ("stat -c '%U %n' /home/ga/Desktop/note /home/ga/mine", "ga /home/ga/Desktop/note\nga /home/ga/mine"),
            ("ls /var/cache/apt/archives/*.deb 2>/dev/null || echo left out", "left out"),
            (
                "python3 -Wignore -c 'import crypt, spwd; hash = spwd.getspnam(\"clerk\").sp_pwdp; \
                print(crypt.crypt(\"a b:c\", hash) == hash)'",
                "True",
            ),
            // What the hook made of an account stays: it is not made anew over a layer.
            ("id -u clerk; id -Gn clerk", "1234\nclerk audio"),
            (
                "su - clerk -c 'echo $WORD'; sudo -u clerk printenv WORD; sudo -u ga printenv WORD",
                "two words'\ntwo words'",
            ),
            ("pgrep -x sleep || echo nothing runs", "nothing runs"),
        ];
        for (line, expected) in cases {
            let (_, output) = shell(&sandbox, "root", line).await?;
            ensure!(output == expected, "{line}\nsays: {output}\nnot:  {expected}");
        }
        sandbox.start_units(second.manifest.units.clone()).await?;
        ensure!(shell(&sandbox, "root", "systemctl is-active nap").await?.1 == "active");
        sandbox.stop().await?;
        ensure!(store.verify(&[]).await?.iter().all(|finding| finding.trouble.is_none()));
        Ok(())
    })
}

#[test]
fn a_hook_that_fails_makes_no_layer() -> Result<()> {
    as_user("a_hook_that_fails_makes_no_layer", |world| async move {
        let store = LayerStore::open(&world.folder.path().join("layers"), None)?;
        let hook = "for i in $(seq 1 60); do echo line $i; done; echo made >/opt/made; exit 3";
        let mut wanted = request(&world, "fails", hook, &[]).await?;
        match build::install(&world.apptainer, &store, &wanted).await {
            Err(BuildError::Hook { exit: 3, log_tail, .. }) => {
                ensure!(log_tail.lines().count() == 50 && log_tail.ends_with("line 60"), "{log_tail}");
            }
            other => bail!("{other:?}"),
        }
        ensure!(store.find(&wanted.key)?.is_none());
        wanted.policy = HookPolicy::Tolerate;
        let layer = build::install(&world.apptainer, &store, &wanted).await?;
        let tolerated = layer.tolerated.context("the failure is recorded")?;
        ensure!(tolerated.exit == 3 && tolerated.log_tail.ends_with("line 60"));
        wanted.limit = Millis(300);
        wanted.hook = "echo begun; sleep 600".into();
        wanted.key = Digest::of(b"slow");
        let slow = build::install(&world.apptainer, &store, &wanted).await;
        ensure!(matches!(&slow, Err(BuildError::HookTime { log_tail, .. }) if log_tail == "begun"), "{slow:?}");
        let cleared =
            janitor::clean(&world.apptainer, Some(&world.image), &world.folder.path().join("scratch")).await?;
        ensure!(cleared.removed.is_empty(), "failed builds clear up after themselves: {cleared:?}");
        Ok(())
    })
}

#[test]
fn what_cannot_be_in_a_layer_is_named() -> Result<()> {
    as_user("what_cannot_be_in_a_layer_is_named", |world| async move {
        let store = LayerStore::open(&world.folder.path().join("layers"), None)?;
        let hook = "su - ga -c 'DISPLAY=:1 xclock >/dev/null 2>&1 &'; until DISPLAY=:1 wmctrl -l | grep xclock; do sleep 0.1; done";
        let wanted = request(&world, "app", hook, &[]).await?;
        let layer = build::configure(&world.apptainer, &store, &wanted).await?;
        match &layer.content {
            LayerContent::Rerun { reason } => {
                ensure!(reason.contains("xclock") && !reason.contains("openbox"), "{reason}")
            }
            LayerContent::File { .. } => bail!("an application was packed"),
        }
        let guard = taken(&store, &layer).await?;
        ensure!(guard.path().is_none());
        Ok(())
    })
}

#[test]
fn two_builders_of_one_layer_are_both_right() -> Result<()> {
    as_user("two_builders_of_one_layer_are_both_right", |world| async move {
        let folder = world.folder.path().join("layers");
        let (here, there) = (LayerStore::open(&folder, None)?, LayerStore::open(&folder, None)?);
        let hook = "head -c 3000000 /dev/urandom >/opt/random";
        let (one, two) = (request(&world, "one", hook, &[]).await?, request(&world, "two", hook, &[]).await?);
        let (one, two) =
            tokio::join!(build::install(&world.apptainer, &here, &one), build::install(&world.apptainer, &there, &two));
        ensure!(one? == two?, "the first one in stays, for both");
        ensure!(here.verify(&[]).await?.iter().all(|finding| finding.trouble.is_none()));
        Ok(())
    })
}
