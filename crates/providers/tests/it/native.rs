//! What only the native provider has: `sudo`, folders of the host, its own users.

mod damaged;
mod waiting;

use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    exec::StartProcess,
    hello::Role,
    sandbox::{HostMount, SandboxSpec},
};
use seawall_core::ports::{Provider, ToBox, Volumes};
use seawall_providers::native::{MountRoot, Mounts, NativeProvider, NativeSettings};
use seawall_wire::{Guest, ProcessOutput};
use std::{
    fs,
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
    sync::Arc,
};
use tempfile::TempDir;

struct World {
    provider: NativeProvider,
    id: SandboxId,
    guest: Guest,
    _data: TempDir,
}

/// A folder that boxes may be given, also to write.
fn granted(folder: &Path) -> Mounts {
    let root = MountRoot { path: folder.canonicalize().unwrap(), writable: true };
    Mounts { granted: vec![root], ..Mounts::default() }
}

impl World {
    async fn new(mounts: Vec<HostMount>, allowed: &TempDir) -> World {
        let data = tempfile::tempdir().unwrap();
        let settings = NativeSettings { mounts: granted(allowed.path()), ..NativeSettings::default() };
        let provider = NativeProvider::open(data.path(), settings).unwrap();
        let id = SandboxId::generate();
        provider
            .create(id, &SandboxSpec { mounts, ..SandboxSpec::default() }, AccountId::LOCAL)
            .await
            .unwrap();
        provider.start(id).await.unwrap();
        World { guest: guest(&provider, id), provider, id, _data: data }
    }

    async fn sh(&self, user: Option<&str>, script: &str) -> (Option<i32>, String) {
        run(&self.guest, user, script).await
    }

    async fn remove(self) {
        self.provider.remove(self.id, Volumes::Delete).await.unwrap();
    }
}

/// What a command printed, and how it ended.
async fn run(guest: &Guest, user: Option<&str>, script: &str) -> (Option<i32>, String) {
    let mut start = StartProcess::new(["sh", "-c", script]);
    start.user = user.map(str::to_owned);
    let mut process = guest.start(start).await.unwrap();
    let mut out = Vec::new();
    loop {
        match process.next().await.unwrap() {
            ProcessOutput::Data { bytes, .. } => out.extend_from_slice(&bytes),
            ProcessOutput::End(status) => {
                return (status.code, String::from_utf8_lossy(&out).into_owned());
            }
            _ => {}
        }
    }
}

fn guest(provider: &NativeProvider, id: SandboxId) -> Guest {
    Guest::new(id, Role::Client, Arc::new(ToBox { provider: Arc::new(provider.clone()), id }))
}

fn is_root(name: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        // Not captured, so that it is counted.
        let _ = writeln!(std::io::stderr(), "skipped native::{name}: capability: users");
    }
    root
}

#[tokio::test]
async fn sudo_runs_what_it_is_asked_as_root_of_the_box() {
    let world = World::new(vec![], &tempfile::tempdir().unwrap()).await;
    for (script, wanted) in [
        ("sudo id -u", "0\n"),
        ("echo through | sudo cat", "through\n"),
        ("cd /tmp && sudo pwd", "/tmp\n"),
        ("sudo A=b sh -c 'echo $A'", "b\n"),
        ("sudo -n true; echo $?", "0\n"),
        ("sudo sh -c 'exit 7'; echo $?", "7\n"),
        ("sudo sh -c 'kill -TERM $$'; echo $?", "143\n"),
        ("sudo no-such-command 2>/dev/null; echo $?", "1\n"),
        ("sudo sh -c 'grep -c NoNewPrivs:.1 /proc/self/status'", "1\n"),
    ] {
        assert_eq!(world.sh(None, script).await.1, wanted, "{script}");
    }
    // Who asked is ended with his command, and the command with whoever asked.
    let (code, out) =
        world.sh(None, "n=98765; timeout 1 sudo sleep ${n}4; sleep 0.2; pgrep -f 'sleep 98765[4]'").await;
    assert_eq!((code, out.as_str()), (Some(1), ""));
    world.remove().await;
}

#[tokio::test]
async fn sudo_as_others_and_a_plain_user_by_default() {
    if !is_root("sudo_as_others_and_a_plain_user_by_default") {
        return;
    }
    let world = World::new(vec![], &tempfile::tempdir().unwrap()).await;
    assert_eq!(
        world.sh(None, "id -un; pwd; echo $HOME; sudo -u nobody id -un").await.1,
        "user\n/work\n/home/user\nnobody\n"
    );
    world.remove().await;
}

#[tokio::test]
async fn folders_of_the_host_are_read_and_where_allowed_written() {
    if !is_root("folders_of_the_host_are_read_and_where_allowed_written") {
        return;
    }
    let allowed = tempfile::tempdir().unwrap();
    fs::set_permissions(allowed.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let place = |name: &str, owner: u32| {
        let path = allowed.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), name).unwrap();
        chown(&path, Some(owner), Some(owner + 1)).unwrap();
        chown(path.join("file"), Some(owner), Some(owner + 1)).unwrap();
        path.canonicalize().unwrap().display().to_string()
    };
    let mount = |source: &str, target: &str, writable| HostMount {
        source: source.into(),
        target: target.into(),
        writable,
    };
    let (theirs, roots) = (place("theirs", 4321), place("roots", 0));
    let mounts = vec![
        mount(&theirs, "/data", true),
        mount(&theirs, "/deep/er/read", false),
        mount(&roots, "/roots", true),
    ];
    let world = World::new(mounts, &allowed).await;
    let (_, out) =
        world.sh(None, "cat /data/file /roots/file /deep/er/read/file; stat -c %U /data/file").await;
    assert_eq!(out, "theirsrootstheirsuser\n");
    assert_eq!(world.sh(None, "echo new > /data/new").await.0, Some(0));
    let written = fs::metadata(allowed.path().join("theirs/new")).unwrap();
    assert_eq!(
        (written.uid(), written.gid()),
        (4321, 4322),
        "what a box writes belongs to the folder's owner"
    );
    assert_ne!(world.sh(None, "echo no > /deep/er/read/new 2>/dev/null").await.0, Some(0));
    // Root of the box makes nothing that is root's outside.
    assert_ne!(world.sh(Some("root"), "echo no > /roots/new 2>/dev/null").await.0, Some(0));
    assert!(!allowed.path().join("roots/new").exists());
    world.remove().await;
    assert_eq!(fs::read_to_string(allowed.path().join("theirs/file")).unwrap(), "theirs");
}

#[tokio::test]
async fn folders_of_the_host_can_be_where_the_user_works() {
    let allowed = tempfile::tempdir().unwrap();
    fs::write(allowed.path().join("file"), "host's").unwrap();
    let at = |target: &str| HostMount {
        source: allowed.path().display().to_string(),
        target: target.to_owned(),
        writable: false,
    };
    let world = World::new(vec![at("/work/deep/data"), at("/srv/data")], &allowed).await;
    let (_, out) = world.sh(None, "cat /work/deep/data/file /srv/data/file; stat -c %U /work/deep").await;
    let owner = if rustix::process::geteuid().is_root() { "user" } else { "root" };
    assert_eq!(out, format!("host'shost's{owner}\n"));
    world.remove().await;
}

/// What the kernel has of a box, by its group.
fn lives(id: SandboxId) -> bool {
    let trees = fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|tree| tree.path());
    let trees = trees.flat_map(|tree| [tree.join("seawall"), tree]);
    let groups = trees.flat_map(|ours| fs::read_dir(ours).into_iter().flatten().flatten());
    groups.into_iter().any(|group| group.file_name().to_string_lossy().ends_with(&id.to_string()))
}

#[tokio::test]
async fn a_box_whose_folder_is_gone_is_ended() {
    if !is_root("a_box_whose_folder_is_gone_is_ended") {
        return;
    }
    for by_list in [true, false] {
        let world = World::new(vec![], &tempfile::tempdir().unwrap()).await;
        let id = world.id;
        let pid = world.provider.get(id).await.unwrap().pid.unwrap();
        assert!(lives(id));
        fs::remove_dir_all(world._data.path().join("native/boxes").join(id.to_string())).unwrap();
        if by_list {
            assert!(world.provider.list().await.unwrap().is_empty());
        } else {
            world.provider.remove(id, Volumes::Delete).await.unwrap();
        }
        assert!(!lives(id), "by list: {by_list}");
        assert!(!fs::exists(format!("/proc/{pid}/root")).unwrap_or(false), "by list: {by_list}");
    }
}

#[tokio::test]
async fn a_full_disk_keeps_nobody_from_removing_what_fills_it() {
    if !is_root("a_full_disk_keeps_nobody_from_removing_what_fills_it") {
        return;
    }
    let disk = tempfile::tempdir().unwrap();
    let mount = |program: &str, args: &[&str]| {
        // Processes that other tests fork hold what is open here until they run their program.
        let done = || std::process::Command::new(program).args(args).arg(disk.path()).status().unwrap();
        let done = (0..100).any(|_| {
            let succeeded = done().success();
            if !succeeded {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            succeeded
        });
        assert!(done, "{program}");
    };
    mount("mount", &["-t", "tmpfs", "-o", "size=24m", "tmpfs"]);
    let id = SandboxId::generate();
    let provider = NativeProvider::open(disk.path(), NativeSettings::default()).unwrap();
    provider.create(id, &SandboxSpec::default(), AccountId::LOCAL).await.unwrap();
    provider.start(id).await.unwrap();
    let filler = disk.path().join("filler");
    let _ = fs::write(&filler, vec![0; 32 << 20]);
    let stopped = provider.stop(id, std::time::Duration::ZERO).await;
    let removed = provider.remove(id, Volumes::Delete).await;
    drop(provider);
    mount("umount", &[]);
    stopped.unwrap();
    removed.unwrap();
    assert!(!lives(id));
}

#[tokio::test]
async fn what_cannot_be_made_leaves_no_volume() {
    if !is_root("what_cannot_be_made_leaves_no_volume") {
        return;
    }
    let data = tempfile::tempdir().unwrap();
    let provider = NativeProvider::open(data.path(), NativeSettings::default()).unwrap();
    let mut spec = SandboxSpec::default();
    for (mb, wanted) in [(u64::MAX >> 20, ErrorKind::Invalid), (16 << 20, ErrorKind::Invalid)] {
        spec.limits.disk_mb = Some(mb);
        let refused = provider.create(SandboxId::generate(), &spec, AccountId::LOCAL).await.unwrap_err();
        assert_eq!(refused.kind(), wanted, "{}", refused.chain());
    }
    assert!(provider.volumes().await.unwrap().is_empty());
    let mount = HostMount { source: "/".into(), target: "/data".into(), writable: false };
    let twice = SandboxSpec { mounts: vec![mount.clone(), mount], ..SandboxSpec::default() };
    let refused = provider.create(SandboxId::generate(), &twice, AccountId::LOCAL).await.unwrap_err();
    assert!(refused.to_string().contains("same place"), "{refused}");
}

/// A box that was made when a folder could be written is not started once an agent's program lies there.
#[tokio::test]
async fn what_a_box_was_once_allowed_counts_for_nothing() {
    let (data, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = shared.path().canonicalize().unwrap();
    fs::create_dir(path.join("agent")).unwrap();
    let open =
        |mounts| NativeProvider::open(data.path(), NativeSettings { mounts, ..NativeSettings::default() });
    let source = path.display().to_string();
    let mounts = vec![HostMount { source, target: "/shared".into(), writable: true }];
    let id = SandboxId::generate();
    let before = open(granted(&path)).unwrap();
    before.create(id, &SandboxSpec { mounts, ..SandboxSpec::default() }, AccountId::LOCAL).await.unwrap();
    let read_only =
        Mounts { granted: vec![MountRoot { path: path.clone(), writable: false }], ..Mounts::default() };
    for mounts in [
        Mounts { programs: vec![path.join("agent")], ..granted(&path) },
        Mounts { programs: vec![path.clone()], ..Mounts::default() },
        read_only,
        Mounts::default(),
    ] {
        let refused = open(mounts.clone()).unwrap().start(id).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied, "{mounts:?}: {}", refused.chain());
    }
    before.start(id).await.unwrap();
    before.remove(id, Volumes::Delete).await.unwrap();
}

/// `/ready` asks this: with less free than the reserve, nothing can be made.
#[tokio::test]
async fn a_provider_below_its_disk_reserve_is_not_ready() {
    let data = tempfile::tempdir().unwrap();
    let settings = NativeSettings { disk_reserve_mb: Some(1 << 40), ..NativeSettings::default() };
    let provider = NativeProvider::open(data.path(), settings).unwrap();
    let error = provider.check().await.unwrap_err();
    assert_eq!(error.code(), "disk_reserve", "{error:?}");
}
