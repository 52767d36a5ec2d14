//! What a container may not do.

use super::world::{DEBIAN, World, sh};
use seawall_api::sandbox::{HostMount, SandboxSpec};
use seawall_core::ports::{BoxState, Provider};
use seawall_providers::{
    docker::{DockerSettings, Transport},
    native::{MountRoot, Mounts},
};
use std::{fs, os::unix::fs::symlink, time::Duration};

#[tokio::test(flavor = "multi_thread")]
async fn p2_a_container_has_no_network_few_capabilities_and_a_filter() {
    let Some(world) = World::new("p2_a_container_is_confined") else { return };
    let (id, guest) = world.sandbox(SandboxSpec::default()).await;
    let (_, interfaces) = sh(&guest, None, "ls /sys/class/net").await;
    assert_eq!(interfaces, "lo\n");
    // The nine that a native box keeps: 0x404fb.
    let (_, status) =
        sh(&guest, Some("root"), "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status").await;
    assert!(status.contains("CapEff:\t00000000000404fb"), "{status}");
    assert!(status.contains("CapBnd:\t00000000000404fb"), "{status}");
    assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
    assert_eq!(
        sh(&guest, None, "ls /var/run/docker.sock /run/docker.sock 2>&1 | grep -c 'No such'").await.1,
        "2\n"
    );
    for attempt in [
        "mount -t tmpfs none /mnt",
        "mknod /tmp/disk b 8 0",
        "echo 1 > /proc/sys/kernel/panic",
        "chroot /proc/1/root true && kill -9 1 && false",
    ] {
        let (code, out) = sh(&guest, Some("root"), attempt).await;
        assert_ne!(code, Some(0), "{attempt}: {out}");
    }
    world.remove(id).await;
}

/// Dials the guest's own socket, and prints what comes back: nothing where the guest hangs up.
const DIAL: &str = r#"
import socket, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect("/run/seawall/wire.sock")
    s.sendall(b"SEAWALL\x01")
    s.settimeout(2)
    print("taken" if s.recv(1) else "refused")
except (PermissionError, BrokenPipeError, ConnectionResetError):
    print("refused")
except socket.timeout:
    print("taken")
"#;

#[tokio::test(flavor = "multi_thread")]
async fn another_process_that_dials_the_guests_socket_is_refused_as_root_and_not() {
    let Some(world) = World::new("another_process_that_dials_the_guest_is_refused") else { return };
    let (id, guest) = world.sandbox(SandboxSpec::default()).await;
    for user in ["root", "1000", "nobody"] {
        let (_, out) = sh(&guest, Some(user), &format!("python3 - <<'EOF'\n{DIAL}\nEOF")).await;
        assert_eq!(out, "refused\n", "as {user}");
    }
    world.remove(id).await;
}

/// Listens for sockets of hosts as the guest does, dials each, and writes what a host says first.
const IMPERSONATE: &str = r#"
import os, socket, time
end = time.time() + 10
seen = set()
while time.time() < end:
    for name in os.listdir("/run/seawall/hosts"):
        if name in seen or not name.endswith(".sock"):
            continue
        seen.add(name)
        s = socket.socket(socket.AF_UNIX)
        try:
            s.connect("/run/seawall/hosts/" + name)
            s.settimeout(1)
            data = s.recv(64)
            if data:
                print("told", data, flush=True)
                os._exit(1)
        except OSError:
            pass
    time.sleep(0.001)
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dials_the_hosts_sockets_learns_nothing_and_writes_nothing() {
    let Some(world) = World::new("a_process_that_dials_the_hosts_sockets_learns_nothing") else { return };
    let (id, guest) = world.sandbox(SandboxSpec::default()).await;
    for user in ["root", "1000"] {
        let (code, _) = sh(&guest, Some(user), "touch /run/seawall/hosts/x.sock").await;
        assert_ne!(code, Some(0), "as {user}");
    }
    let attack = {
        let guest = guest.clone();
        tokio::spawn(async move {
            sh(&guest, Some("root"), &format!("python3 - <<'EOF'\n{IMPERSONATE}\nEOF")).await
        })
    };
    // Each new client makes a socket, and gets through to the guest all the same.
    for _ in 0..20 {
        assert_eq!(sh(&world.guest(id), None, "echo through").await.1, "through\n");
    }
    let (_, told) = attack.await.unwrap();
    assert_eq!(told, "", "a process of the container was taken for the guest");
    world.remove(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_of_a_container_cannot_trace_the_guest() {
    let Some(world) = World::new("root_of_a_container_cannot_trace_the_guest") else { return };
    let (id, guest) = world.sandbox(SandboxSpec::default()).await;
    let script = r#"
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print("attached" if libc.ptrace(16, 1, 0, 0) == 0 else "refused")
try:
    open("/proc/1/mem", "rb")
    print("opened")
except OSError:
    print("refused")
"#;
    let (_, out) = sh(&guest, Some("root"), &format!("python3 - <<'EOF'\n{script}\nEOF")).await;
    assert_eq!(out, "refused\nrefused\n");
    world.remove(id).await;
}

/// Takes the guest's place at its socket, and writes what a host says first.
const REPLACE: &str = r#"
import os, socket
os.rename("/run/seawall/wire.sock", "/run/seawall/moved.sock")
s = socket.socket(socket.AF_UNIX)
s.bind("/run/seawall/wire.sock")
s.listen()
print("listens", flush=True)
s.settimeout(5)
try:
    while True:
        c, _ = s.accept()
        c.settimeout(1)
        data = c.recv(64)
        if data:
            print("told", data, flush=True)
except OSError:
    pass
"#;

#[tokio::test(flavor = "multi_thread")]
async fn root_of_a_container_cannot_take_the_guests_place_at_its_socket() {
    let name = "root_of_a_container_cannot_take_the_guests_place";
    let settings = DockerSettings {
        image: Some(DEBIAN.to_owned()),
        transport: Transport::Exec,
        ..DockerSettings::default()
    };
    let Some(world) = World::with(name, settings) else { return };
    let (id, guest) = world.sandbox(SandboxSpec::default()).await;
    let attack = {
        let guest = guest.clone();
        tokio::spawn(
            async move { sh(&guest, Some("root"), &format!("python3 - <<'EOF'\n{REPLACE}\nEOF")).await },
        )
    };
    let listens = "until test -S /run/seawall/moved.sock -a -S /run/seawall/wire.sock; do sleep 0.01; done";
    assert_eq!(sh(&guest, None, listens).await.0, Some(0));
    // A new client comes by another bridge.
    assert!(world.guest(id).info().await.is_err());
    assert_eq!(attack.await.unwrap().1, "listens\n", "a host spoke to another process than the guest");
    world.remove(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_was_replaced_or_is_no_longer_granted_is_never_mounted() {
    let name = "a_folder_that_was_replaced_is_never_mounted";
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().canonicalize().unwrap();
    let (given, secret) = (top.join("given"), top.join("secret"));
    fs::create_dir_all(&given).unwrap();
    fs::create_dir_all(&secret).unwrap();
    fs::write(secret.join("key"), "secret").unwrap();
    let granted = vec![MountRoot { path: top.clone(), writable: true }];
    let mounts = Mounts { granted, ..Mounts::default() };
    let settings = DockerSettings { image: Some(DEBIAN.to_owned()), mounts, ..DockerSettings::default() };
    let Some(world) = World::with(name, settings) else { return };
    let mount =
        HostMount { source: given.display().to_string(), target: "/given".to_owned(), writable: true };
    let spec = SandboxSpec { mounts: vec![mount], ..SandboxSpec::default() };
    let (id, guest) = world.sandbox(spec).await;
    assert_eq!(sh(&guest, Some("root"), "echo x > /given/file").await.0, Some(0));
    assert_eq!(fs::read_to_string(given.join("file")).unwrap(), "x\n");
    world.provider.stop(id, Duration::ZERO).await.unwrap();
    fs::rename(&given, top.join("moved")).unwrap();
    symlink(&secret, &given).unwrap();
    for _ in 0..2 {
        assert!(world.provider.start(id).await.is_err());
        assert_ne!(world.provider.get(id).await.unwrap().state, BoxState::Running);
    }
    fs::remove_file(&given).unwrap();
    fs::create_dir_all(&given).unwrap();
    world.provider.start(id).await.unwrap();
    world.remove(id).await;
    for target in ["/run", "/run/seawall/bin"] {
        let mount =
            HostMount { source: given.display().to_string(), target: target.to_owned(), writable: false };
        let spec = SandboxSpec { mounts: vec![mount], ..SandboxSpec::default() };
        assert!(world.create(id, &spec).await.is_err(), "{target}");
    }
    assert!(world.provider.volumes().await.unwrap().is_empty());
}
