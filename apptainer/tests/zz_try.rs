//! try
mod common;
use common::*;
use longhaul_apptainer::{Bind, Network, Sandbox};
use longhaul_apptainer::layers::{build::{self, BuildRequest}, LayerStore};
use longhaul_core::{digest::Digest, plan::HookPolicy, time::{Millis, Timestamp}};
#[test]
fn gpredict() -> anyhow::Result<()> {
    as_user("gpredict", |world| async move {
        let env = std::path::PathBuf::from("/home/hauler/ga/gpredict_env");
        let store = LayerStore::open(std::path::Path::new("/home/hauler/ga/layers"), None)?;
        let mut spec = world.spec("gp");
        for m in ["scripts", "config", "data", "utils", "assets", "tasks"] {
            if env.join(m).exists() { spec.binds.push(Bind { source: env.join(m), target: format!("/workspace/{m}").into(), writable: false }); }
        }
        spec.network = Network::Open;
        let t = std::time::Instant::now();
        let driver = world.apptainer.overlay_driver(&world.image, world.folder.path()).await?;
        eprintln!("driver {driver} {:?}", t.elapsed());
        let mut r = BuildRequest { key: Digest::of(b"gp-install"), env: "gpredict_env".into(), hook: "/workspace/scripts/install_gpredict.sh".into(), limit: Millis::from_secs(1800), policy: HookPolicy::Strict, accounts: vec![], parents: vec![], overlay_driver: driver, inputs: vec![], units: vec![], screen: (1920,1080), sandbox: spec.clone(), created: Timestamp(0) };
        let t = std::time::Instant::now();
        let a = build::install(&world.apptainer, &store, &r).await;
        if let Err(e) = &a { eprintln!("{e} {:?}", e.log_tail()); }
        let a = a?;
        eprintln!("install {:?} {} ms hook, {:?}", t.elapsed(), a.hook_millis, a.content);
        let ga = store.use_layer(&a.key).await?.unwrap();
        r.key = Digest::of(b"gp-configure"); r.hook = "/workspace/scripts/setup_gpredict.sh".into();
        r.sandbox.layers = vec![ga.path().unwrap().into()];
        let t = std::time::Instant::now();
        let b = build::configure(&world.apptainer, &store, &r).await;
        if let Err(e) = &b { eprintln!("{e} {:?}", e.log_tail()); }
        let b = b?;
        eprintln!("configure {:?} {} ms hook, {:?}", t.elapsed(), b.hook_millis, b.content);
        let gb = store.use_layer(&b.key).await?.unwrap();
        let mut spec = spec.clone(); spec.id = "gp2".into(); spec.layers = [ga.path(), gb.path()].into_iter().flatten().map(Into::into).collect(); spec.network = Network::None;
        let t = std::time::Instant::now();
        let s = Sandbox::start(&world.apptainer, spec).await?;
        eprintln!("started {:?}", t.elapsed());
        s.start_display(1920,1080).await?;
        eprintln!("display {:?}", t.elapsed());
        let o = shell(&s, "root", "bash /workspace/tasks/add_ground_station/setup_task.sh 2>&1 | tail -5; scrot -o /tmp/s.png").await;
        eprintln!("setup {:?} {o:?}", t.elapsed());
        let mut f = tokio::fs::File::create("/home/hauler/ga/s.png").await?;
        shell(&s, "ga", "DISPLAY=:1 scrot -o /tmp/s.png").await?;
        s.read_file("/tmp/s.png", &mut f).await?;
        eprintln!("mem {}", s.memory());
        let t = std::time::Instant::now(); s.stop().await?; eprintln!("stop {:?}", t.elapsed());
        Ok(())
    })
}
