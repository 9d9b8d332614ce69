//! Real sandboxes: real Apptainer, a real base image, a real display.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use common::{World, as_user, shell};
use longhaul_apptainer::client::ClientError;
use longhaul_apptainer::{Bind, Gpus, Maker, Network, Sandbox, SandboxError, accounts, identity, janitor};
use longhaul_core::helper::{CommandSpec, DisplayState, HelperFailure};
use longhaul_core::plan::AccountPlan;

async fn start(world: &World, id: &str) -> Result<Sandbox> {
    Ok(Sandbox::start(&world.apptainer, world.spec(id)).await?)
}

/// Processes, outside of this test, that still serve a sandbox of its folder: they have
/// something of it mounted, name it, or carry a sandbox's mark and descend from this test.
fn left_over(world: &World) -> Vec<String> {
    let folder = world.folder.path().display().to_string();
    let own = std::process::id();
    let children = i32::try_from(own).map(identity::tree).unwrap_or_default();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_string_lossy().parse::<i32>().ok()?;
            let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
            let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            let mounts = String::from_utf8_lossy(&read("mountinfo")).into_owned();
            let ours = command.contains(&folder) || mounts.contains(&folder) || children.contains(&pid);
            (ours && u32::try_from(pid) != Ok(own) && !command.is_empty()).then(|| format!("{pid}: {command}"))
        })
        .collect()
}

/// A client's first words to the display of a sandbox; its screen's size.
fn greet(sandbox: &Sandbox) -> Result<(u16, u16)> {
    let socket = sandbox.x_socket();
    let folder = fs::File::open(socket.parent().context("a folder")?)?;
    let mut stream = UnixStream::connect(format!("/proc/self/fd/{}/X1", folder.as_raw_fd()))?;
    stream.write_all(&[b'l', 0, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
    let mut head = [0; 8];
    stream.read_exact(&mut head)?;
    ensure!(head[0] == 1, "refused");
    let mut body = vec![0; usize::from(u16::from_le_bytes([head[6], head[7]])) * 4];
    stream.read_exact(&mut body)?;
    let number = |at: usize| usize::from(u16::from_le_bytes([body[at], body[at + 1]]));
    let (vendor, formats) = (number(16), usize::from(body[21]));
    let screen = 32 + vendor.div_ceil(4) * 4 + formats * 8;
    let size = |at: usize| u16::from_le_bytes([body[at], body[at + 1]]);
    Ok((size(screen + 20), size(screen + 22)))
}

#[test]
fn what_scripts_expect_is_there() -> Result<()> {
    as_user("what_scripts_expect_is_there", |world| async move {
        let data = world.folder.path().join("data");
        fs::create_dir(&data)?;
        fs::write(data.join("file.txt"), "from the host\n")?;
        let mut spec = world.spec("expect");
        spec.binds = vec![Bind { source: data, target: "/workspace/data".into(), writable: false }];
        spec.env.insert("https_proxy".into(), "http://proxy.example:3128".into());
        let sandbox = Sandbox::start(&world.apptainer, spec).await?;
        let cases = [
            ("root", "id -u; pwd; echo $HOME $DISPLAY", "0\n/root\n/root :1"),
            ("ga", "id -u; id -Gn | tr ' ' '\\n' | grep -cx -e sudo -e audio -e video; pwd", "1000\n3\n/home/ga"),
            ("ga", "echo $XDG_RUNTIME_DIR; stat -c %U $XDG_RUNTIME_DIR", "/run/user/1000\nga"),
            ("root", "su - ga -c 'id -un; echo $XDG_RUNTIME_DIR'", "ga\n/run/user/1000"),
            (
                "root",
                "cat /workspace/data/file.txt; touch /workspace/data/x 2>/dev/null || echo read-only",
                "from the host\nread-only",
            ),
            ("root", "chown ga:ga /tmp && stat -c %U /tmp && chown root /tmp", "ga"),
            ("root", "stat -c %a /tmp /var/tmp /tmp/.X11-unix | sort -u", "1777"),
            (
                "root",
                "echo $https_proxy; ls -d /home/ga/Desktop /home/ga/Documents",
                "http://proxy.example:3128\n/home/ga/Desktop\n/home/ga/Documents",
            ),
            ("root", "hostname; getent hosts sandbox | wc -l; cat /proc/1/comm", "sandbox\n1\nhelper"),
            (
                "root",
                "python3 -c 'import numpy, PIL, openpyxl, lxml, scipy, pandas, docx, requests, yaml, pdfminer, bs4; print(1)'",
                "1",
            ),
            (
                "root",
                "for t in Xvfb openbox xdotool wmctrl scrot convert ffmpeg xclip mksquashfs jq git curl; do command -v $t >/dev/null || echo no $t; done",
                "",
            ),
            ("root", "ip -o link | grep -vc LOOPBACK; ip -o addr show lo | grep -c 127.0.0.1", "0\n1"),
        ];
        for (user, line, expected) in cases {
            let (_, output) = shell(&sandbox, user, line).await?;
            ensure!(output == expected, "{user}: {line}\nsays: {output}\nnot:  {expected}");
        }
        sandbox.stop().await?;
        Ok(())
    })
}

#[test]
fn sudo_gives_what_no_set_user_id_file_can() -> Result<()> {
    as_user("sudo_gives_what_no_set_user_id_file_can", |world| async move {
        let sandbox = start(&world, "sudo").await?;
        let cases = [
            ("ga", "sudo id -u", 0, "0"),
            ("ga", "echo password123 | sudo -S -p '' sh -c 'id -u; exit 7'", 7, "0"),
            ("ga", "cd /var/tmp && sudo -E pwd && sudo -n -u ga id -un", 0, "/var/tmp\nga"),
            ("ga", "X=1 sudo -E sh -c 'echo $X $HOME'; sudo sh -c 'echo $HOME $SUDO_USER'", 0, "1 /home/ga\n/root ga"),
            ("ga", "sudo -i pwd; pkexec id -u; printf 'a\\nb\\n' | sudo tail -n 1", 0, "/root\n0\nb"),
            ("root", "sudo -u ga sh -c 'id -un; echo $HOME'; sudo -H -u ga bash -c 'whoami'", 0, "ga\n/home/ga\nga"),
            ("ga", "sudo sh -c 'kill -9 $$'", 137, ""),
            ("ga", "sudo no-such-program 2>/dev/null", 127, ""),
            ("ga", "timeout 1 sudo sleep 600; pgrep -x sleep || echo ended", 0, "ended"),
            (
                "root",
                "useradd -m guest; su guest -c 'sudo id' 2>&1",
                1,
                "sudo: this account is not in the sudoers file",
            ),
            ("root", "ls -l /usr/bin/sudo.distrib | cut -c1-4", 0, "-rws"),
        ];
        for (user, line, code, expected) in cases {
            let (got, output) = shell(&sandbox, user, line).await?;
            ensure!(
                (got, output.as_str()) == (code, expected),
                "{user}: {line}\nsays: {output} ({got})\nnot:  {expected}"
            );
        }
        sandbox.stop().await?;
        Ok(())
    })
}

#[test]
fn files_come_out_and_go_in() -> Result<()> {
    as_user("files_come_out_and_go_in", |world| async move {
        let sandbox = start(&world, "files").await?;
        let data: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        sandbox.write_file("/home/ga/new/data.bin", &mut data.as_slice()).await?;
        let mut back = Vec::new();
        ensure!(sandbox.read_file("/home/ga/new/data.bin", &mut back).await? == 12_000_000);
        ensure!(back == data, "it comes back as it went in");
        for (most, expected) in [(5, 5), (0, 0), (u64::MAX, 12_000_000)] {
            let mut end = Vec::new();
            let read = sandbox.read_end("/home/ga/new/data.bin", most, &mut end).await?;
            ensure!(read == expected && data.ends_with(&end) && end.len() as u64 == expected, "{most}: {read}");
        }
        let (_, seen) = shell(&sandbox, "ga", "stat -c '%a %U' /home/ga/new/data.bin").await?;
        ensure!(seen == "644 root", "{seen}");
        let missing = sandbox.read_file("/no/such/file", &mut Vec::new()).await;
        ensure!(
            matches!(&missing, Err(SandboxError::Client(ClientError::Refused { kind: HelperFailure::NotFound, .. }))),
            "{missing:?}"
        );
        let mut tree = Vec::new();
        sandbox.read_tree("/home/ga/new", &mut tree).await?;
        ensure!(tree.len() > 12_000_000, "a tar of it");
        let nobody =
            sandbox.run(CommandSpec { argv: vec!["id".into()], user: "x".into(), ..CommandSpec::default() }).await;
        ensure!(
            matches!(&nobody, Err(SandboxError::Client(ClientError::Refused { kind: HelperFailure::NoSuchUser, .. }))),
            "{nobody:?}"
        );
        sandbox.stop().await?;
        Ok(())
    })
}

#[test]
fn two_sandboxes_have_display_one_at_once() -> Result<()> {
    as_user("two_sandboxes_have_display_one_at_once", |world| async move {
        let (one, two) = tokio::join!(start(&world, "one"), start(&world, "two"));
        let (one, two) = (one?, two?);
        let (first, second) = tokio::join!(one.start_display(1920, 1080), two.start_display(1366, 768));
        first?;
        second?;
        ensure!(greet(&one)? == (1920, 1080));
        ensure!(greet(&two)? == (1366, 768));
        one.start_display(1920, 1080).await?;
        ensure!(one.start_display(800, 600).await.is_err(), "a display of another size runs");
        ensure!(one.processes().await?.is_empty(), "the display is not counted");
        let (code, windows) =
            shell(&one, "ga", "xterm -title hello -e sleep 600 & until wmctrl -l | grep hello; do sleep 0.1; done")
                .await?;
        ensure!(code == 0 && windows.contains("hello"), "{windows}");
        let left = one.processes().await?;
        ensure!(left.len() >= 2, "the terminal and its shell: {left:?}");
        ensure!(left.iter().any(|process| process.command.starts_with("xterm") && process.uid == 1000), "{left:?}");
        ensure!(one.memory() > 20, "{} MiB", one.memory());
        ensure!(one.display().await? == DisplayState::Up);
        shell(&one, "root", "pkill -KILL Xvfb; sleep 0.5").await?;
        ensure!(matches!(one.display().await?, DisplayState::Died { .. }), "its death is told");
        ensure!(two.display().await? == DisplayState::Up, "and is nobody else's");
        one.stop().await?;
        two.stop().await?;
        ensure!(left_over(&world).is_empty(), "{:?}", left_over(&world));
        Ok(())
    })
}

#[test]
fn eight_at_once_leave_nothing() -> Result<()> {
    as_user("eight_at_once_leave_nothing", |world| async move {
        let world = std::sync::Arc::new(world);
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..8 {
            let world = std::sync::Arc::clone(&world);
            tasks.spawn(async move {
                let sandbox = start(&world, &format!("n{number}")).await?;
                sandbox.start_display(1024, 768).await?;
                // Files of another account, a daemon that ignores TERM, and open files.
                let line = "touch ~/mine; (trap '' TERM; sleep 600) & setsid sleep 601 >/dev/null 2>&1 & exec 3>~/open; echo ok";
                let (code, output) = shell(&sandbox, "ga", line).await?;
                ensure!(code == 0 && output == "ok", "{output}");
                let ended = sandbox.exited();
                sandbox.stop().await?;
                ended.await;
                Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        ensure!(left_over(&world).is_empty(), "{:?}", left_over(&world));
        let scratch = world.folder.path().join("scratch");
        ensure!(fs::read_dir(scratch)?.count() == 0, "every folder is gone");
        Ok(())
    })
}

#[test]
fn a_sandbox_that_is_let_go_ends_and_is_cleared_away() -> Result<()> {
    as_user("a_sandbox_that_is_let_go_ends_and_is_cleared_away", |world| async move {
        let held = start(&world, "held").await?;
        let dropped = start(&world, "dropped").await?;
        shell(&dropped, "ga", "touch ~/mine; sleep 600 >/dev/null 2>&1 &").await?;
        let (ended, folder) = (dropped.exited(), dropped.folder().to_owned());
        drop(dropped);
        tokio::time::timeout(Duration::from_secs(60), ended).await.context("its lifeline broke")?;
        ensure!(folder.exists());
        let cleared =
            janitor::clean(&world.apptainer, Some(&world.image), &world.folder.path().join("scratch")).await?;
        ensure!(cleared.removed == [folder.clone()] && cleared.held == [held.folder().to_owned()], "{cleared:?}");
        ensure!(!folder.exists());
        ensure!(shell(&held, "ga", "echo alive").await?.1 == "alive", "what is held is left alone");
        let group = nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(held.identity().pid)))?;
        ensure!(group != nix::unistd::getpgrp(), "a signal to the worker's process group does not reach it");
        held.stop().await?;
        ensure!(left_over(&world).is_empty(), "{:?}", left_over(&world));
        Ok(())
    })
}

#[test]
fn the_janitor_ends_what_a_killed_apptainer_leaves() -> Result<()> {
    as_user("the_janitor_ends_what_a_killed_apptainer_leaves", |world| async move {
        let sandbox = start(&world, "killed").await?;
        shell(&sandbox, "ga", "touch ~/mine").await?;
        let (ended, folder) = (sandbox.exited(), sandbox.folder().to_owned());
        sandbox.identity().signal(nix::sys::signal::Signal::SIGKILL)?;
        ended.await;
        ensure!(!left_over(&world).is_empty(), "FUSE processes linger after a kill: that is why there is a janitor");
        drop(sandbox);
        let cleared =
            janitor::clean(&world.apptainer, Some(&world.image), &world.folder.path().join("scratch")).await?;
        ensure!(cleared.removed == [folder], "{cleared:?}");
        ensure!(left_over(&world).is_empty(), "{:?}", left_over(&world));
        Ok(())
    })
}

#[test]
fn one_top_has_one_sandbox() -> Result<()> {
    as_user("one_top_has_one_sandbox", |world| async move {
        let sandbox = start(&world, "same").await?;
        let second = start(&world, "same").await;
        ensure!(second.is_err(), "two on one top would destroy each other's files");
        ensure!(start(&world, "../evil").await.is_err());
        sandbox.stop().await?;
        start(&world, "same").await?.stop().await?;
        Ok(())
    })
}

#[test]
fn a_command_that_nobody_waits_for_ends() -> Result<()> {
    as_user("a_command_that_nobody_waits_for_ends", |world| async move {
        let sandbox = start(&world, "cancel").await?;
        let command = sandbox.run(CommandSpec {
            argv: ["sleep", "600"].map(str::to_owned).into(),
            user: "ga".into(),
            ..CommandSpec::default()
        });
        ensure!(tokio::time::timeout(Duration::from_millis(300), command).await.is_err());
        for _ in 0..100 {
            if sandbox.processes().await?.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        ensure!(sandbox.processes().await?.is_empty(), "{:?}", sandbox.processes().await?);
        let ended = sandbox.run(CommandSpec {
            argv: ["sleep", "600"].map(str::to_owned).into(),
            user: "ga".into(),
            limit_millis: 200,
            ..CommandSpec::default()
        });
        ensure!(ended.await?.timed_out);
        sandbox.stop().await?;
        Ok(())
    })
}

#[test]
fn units_that_only_start_a_command_run() -> Result<()> {
    as_user("units_that_only_start_a_command_run", |world| async move {
        let sandbox = start(&world, "units").await?;
        let unit = "[Unit]\nDescription=A test\n[Service]\nType=notify\nUser=ga\nEnvironment=WORD=hello \"TWO=a b\"\n\
            ExecStartPre=/bin/sh -c 'echo pre'\nExecStart=/usr/bin/python3 -u -c \"import os,socket,time; \
            s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM); s.sendto(b'READY=1',os.environ['NOTIFY_SOCKET']); \
            print(os.getuid(), os.environ['WORD'], '%i', os.environ['TWO']); time.sleep(600)\"\n[Install]\nWantedBy=multi-user.target\n";
        sandbox.write_file("/etc/systemd/system/thing@.service", &mut unit.as_bytes()).await?;
        let mount = "[Mount]\nWhat=/dev/sda\nWhere=/x\n";
        sandbox.write_file("/etc/systemd/system/x.mount", &mut mount.as_bytes()).await?;
        let fork = "[Service]\nType=forking\nExecStart=/bin/sh -c 'env -i setsid sleep 601 & echo $! >/run/old.pid'\nPIDFile=/run/old.pid\n";
        sandbox.write_file("/etc/systemd/system/old.service", &mut fork.as_bytes()).await?;
        let script = "#!/bin/sh\ncase $1 in start) start-stop-daemon -S -b -m -p /run/ini.pid -x /bin/sleep -- 602;; \
            stop) start-stop-daemon -K -p /run/ini.pid;; status) start-stop-daemon -T -p /run/ini.pid;; esac\n";
        sandbox.write_file("/etc/init.d/ini", &mut script.as_bytes()).await?;
        sandbox.write_file("/etc/init.d/lightdm", &mut &b"#!/bin/sh\ntouch /run/lightdm.ran\n"[..]).await?;
        let console = "[Service]\nExecStart=/bin/sleep 603\n[Install]\nWantedBy=getty.target\n";
        sandbox.write_file("/etc/systemd/system/getty@.service", &mut console.as_bytes()).await?;
        sandbox.write_file("/etc/systemd/system/serial-getty@.service", &mut console.as_bytes()).await?;
        let cases = [
            (
                "systemctl daemon-reload; systemctl start thing@one old; systemctl is-active thing@one old",
                0,
                "active\nactive",
            ),
            ("journalctl -u thing@one --no-pager", 0, "pre\n1000 hello one a b"),
            ("chmod +x /etc/init.d/ini; service ini start; service ini status >/dev/null; echo $?", 0, "0"),
            ("systemctl start x.mount 2>&1", 1, "x.mount: only services can be run in this sandbox, not a mount"),
            ("systemctl start no-such-thing 2>&1", 5, "Unit no-such-thing.service not found."),
            (
                "systemctl restart docker 2>&1",
                1,
                "docker.service needs the kernel or an init system in ways that this sandbox does not have",
            ),
            ("systemctl enable thing@two 2>/dev/null; systemctl is-enabled thing@two", 0, "enabled"),
            // Consoles and display managers: packages enable them, scripts restart them, and
            // a sandbox has neither. No failure, nothing started, nothing to start again.
            (
                "systemctl enable getty@tty1 serial-getty@ttyS0 2>/dev/null; systemctl restart getty@tty1 2>&1",
                0,
                "getty@tty1.service is not started: a sandbox has its own display, and no consoles",
            ),
            ("systemctl is-active getty@tty1", 3, "inactive"),
            ("systemctl restart gdm 2>&1", 5, "Unit gdm.service not found."),
            (
                "chmod +x /etc/init.d/lightdm; service lightdm start 2>&1; systemctl enable lightdm; ls /run/lightdm.ran 2>&1",
                2,
                "lightdm.service is not started: a sandbox has its own display, and no consoles\n\
                ls: cannot access '/run/lightdm.ran': No such file or directory",
            ),
            ("systemctl show -p ActiveState --value old", 0, "active"),
            ("systemctl stop old; systemctl is-active old", 3, "inactive"),
            ("systemctl start old; systemctl status old | head -1", 0, "* old.service - old.service"),
        ];
        for (line, code, expected) in cases {
            let (got, output) = shell(&sandbox, "root", line).await?;
            ensure!((got, output.as_str()) == (code, expected), "{line}\nsays: {output} ({got})\nnot:  {expected}");
        }
        let units = sandbox.units().await?;
        ensure!(units == ["thing@one.service", "ini.service", "old.service", "thing@two.service"], "{units:?}");
        let processes = sandbox.processes().await?;
        ensure!(processes.len() >= 3 && processes.iter().all(|process| process.unit.is_some()), "{processes:?}");
        sandbox.kill_all(Duration::from_millis(500)).await?;
        ensure!(sandbox.processes().await?.is_empty());
        sandbox.start_units(units).await?;
        let (_, states) = shell(&sandbox, "root", "systemctl is-active thing@one thing@two old ini").await?;
        ensure!(states == "active\nactive\nactive\nactive", "{states}");
        sandbox.stop().await?;
        Ok(())
    })
}

#[test]
fn a_sandbox_with_a_way_out_does_not_reach_the_node_itself() -> Result<()> {
    as_user("a_sandbox_with_a_way_out_does_not_reach_the_node_itself", |world| async move {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let mut spec = world.spec("net");
        spec.network = Network::Open;
        let sandbox = Sandbox::start(&world.apptainer, spec).await?;
        let (_, seen) =
            shell(&sandbox, "ga", "ip -o -4 addr show tap0 | awk '{print $4}'; grep -c 10.0.2.3 /etc/resolv.conf")
                .await?;
        ensure!(seen == "10.0.2.100/24\n1", "{seen}");
        let line = format!("timeout 5 bash -c 'exec 3<>/dev/tcp/10.0.2.2/{port}' 2>/dev/null || echo refused");
        let (_, output) = shell(&sandbox, "ga", &line).await?;
        ensure!(output == "refused", "the node's loopback is closed: {output}");
        sandbox.stop().await?;
        ensure!(left_over(&world).is_empty(), "{:?}", left_over(&world));
        Ok(())
    })
}

/// On a machine without any, Apptainer finds nothing of the driver and starts the sandbox all the same: what is
/// tried is all but the device itself.
#[test]
fn programs_know_which_graphics_processors_are_theirs_however_they_are_started() -> Result<()> {
    as_user("programs_know_which_graphics_processors_are_theirs_however_they_are_started", |world| async move {
        for (maker, name, ids) in
            [(Maker::Nvidia, "CUDA_VISIBLE_DEVICES", ["1", "3"]), (Maker::Amd, "ROCR_VISIBLE_DEVICES", ["0", "2"])]
        {
            let mut spec = world.spec(&format!("gpus-{}", maker.name()));
            spec.gpus = Gpus::new(maker, ids.map(str::to_owned).into());
            let sandbox = Sandbox::start(&world.apptainer, spec).await?;
            let says = format!("echo ${name}");
            let own = ids.join(",");
            for (user, line) in [("root", says.as_str()), ("ga", &says), ("root", &format!("su - ga -c '{says}'"))] {
                let (_, output) = shell(&sandbox, user, line).await?;
                ensure!(output == own, "{user}: {line} says {output}, not {own}");
            }
            // As for an env without hooks, whose accounts no layer has.
            let account = |name: &str| AccountPlan {
                name: name.to_owned(),
                uid: None,
                groups: Vec::new(),
                shell: "/bin/bash".to_owned(),
                sudo: false,
                password: None,
                env_vars: [("MODE".to_owned(), "kiosk".to_owned())].into(),
            };
            accounts::make(&sandbox, &[account("ga"), account("artist")]).await?;
            for user in ["ga", "artist"] {
                let (_, output) = shell(&sandbox, user, &format!("echo $MODE ${name}")).await?;
                ensure!(output == format!("kiosk {own}"), "{user}: {output}");
            }
            sandbox.stop().await?;
        }
        Ok(())
    })
}
