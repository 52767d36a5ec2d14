//! Pulling from a registry, Debian's `docker-registry` on this machine.

use super::world::{World, run};
use seawall_api::sandbox::SandboxSpec;
use seawall_core::testing::Log;
use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// A registry on a port that the kernel chose, ended with the test.
struct Registry {
    child: Child,
    address: String,
    _folder: TempDir,
}

impl Registry {
    fn start() -> Registry {
        let folder = tempfile::tempdir().unwrap();
        let (config, log) = (folder.path().join("config.yml"), folder.path().join("log"));
        let storage = folder.path().join("storage");
        let text = format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:0\n",
            storage.display()
        );
        fs::write(&config, text).unwrap();
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let address = address(&log);
        Registry { child, address, _folder: folder }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the line that has the address.
fn address(log: &Path) -> String {
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        let text = fs::read_to_string(log).unwrap_or_default();
        let found = text.split("listening on ").nth(1).and_then(|rest| rest.split(['"', ' ', '\n']).next());
        if let Some(address) = found.filter(|address| !address.ends_with(":0")) {
            return address.to_owned();
        }
        assert!(Instant::now() < give_up, "the registry does not start: {text}");
        sleep(Duration::from_millis(20));
    }
}

#[tokio::test]
async fn p2_an_image_is_pulled_with_progress() {
    let name = "p2_an_image_is_pulled_with_progress";
    let Some(world) = World::new(name) else { return };
    if Command::new("docker-registry").arg("--version").output().is_err() {
        let _ = writeln!(std::io::stderr(), "skipped docker::{name}: docker-registry is not installed");
        return;
    }
    let registry = Registry::start();
    let image = format!("{}/team/tools:1", registry.address);
    world.docker(&["tag", "seawall-test/static", &image]);
    world.docker(&["push", "--quiet", &image]);
    world.docker(&["rmi", &image]);
    Log::listen();
    let spec = SandboxSpec { image: Some(image.clone()), ..SandboxSpec::default() };
    let (id, guest) = world.sandbox(spec).await;
    assert_eq!(run(&guest, None, &["/busybox", "echo", "pulled"]).await.1, "pulled\n");
    let lines = Log::take();
    let of_pull: Vec<_> =
        lines.iter().filter(|line| line.contains("an image") && line.contains(&image)).collect();
    assert!(of_pull.iter().any(|line| line.contains("pulling an image")), "{lines:?}");
    assert!(of_pull.iter().any(|line| line.contains("pulled an image")), "{lines:?}");
    world.remove(id).await;
    let missing =
        SandboxSpec { image: Some(format!("{}/team/none", registry.address)), ..SandboxSpec::default() };
    let error = world.create(id, &missing).await.unwrap_err();
    assert_eq!(error.code(), "image_not_found");
    assert!(error.to_string().contains("team/none"), "{error}");
    world.docker(&["rmi", &image]);
}
