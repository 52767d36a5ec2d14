//! What a container may not do.

use super::world::{World, sh};
use seawall_api::sandbox::SandboxSpec;

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
