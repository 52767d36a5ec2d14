//! A server that is killed after each step of making and of removing a sandbox: what is left is usable or gone.

use serde_json::Value;
use std::{
    collections::BTreeSet,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// More steps than there are.
const MANY: usize = 60;
const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    data: TempDir,
    mark: PathBuf,
}

impl World {
    fn new() -> World {
        let data = tempfile::tempdir().unwrap();
        let mark = data.path().join("mark");
        // With a provider that is named, a server that starts makes no sandbox to try one.
        std::fs::write(data.path().join("seawall.toml"), "provider = \"native\"\n").unwrap();
        World { data, mark }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seawall"));
        command
            .args(args)
            .env("SEAWALL_DATA", self.data.path().join("data"))
            .env("XDG_CONFIG_HOME", self.data.path())
            .env_remove("SEAWALL_PROVIDER")
            .current_dir(self.data.path())
            .stdin(Stdio::null());
        command
    }

    fn seawall(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.seawall(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {:?} {stderr}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    fn list(&self) -> Vec<(String, String)> {
        let all: Value = serde_json::from_str(&self.ok(&["ls", "--json"])).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        all["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|each| (text(&each["id"]), text(&each["state"])))
            .collect()
    }

    /// Runs until the step; none when it ended before. The name of the step, and the process that is held.
    fn hold(&self, args: &[&str], step: usize) -> Option<(String, Child)> {
        let _ = std::fs::remove_file(&self.mark);
        // The process that is held is the server.
        self.ok(&["server", "stop"]);
        let mut command = self.command(args);
        command.env("SEAWALL_BACKGROUND", "never");
        command.env("SEAWALL_TEST_HOLD", step.to_string()).env("SEAWALL_TEST_HOLD_MARK", &self.mark);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(name) = std::fs::read_to_string(&self.mark) {
                return Some((name, child));
            }
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success(), "{args:?} failed by itself: {status}");
                return None;
            }
            assert!(Instant::now() < deadline, "{args:?} neither ends nor comes to step {step}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// All files and folders that belong to sandboxes.
    fn leftovers(&self) -> Vec<PathBuf> {
        let data = self.data.path().join("data");
        let of = |folder: &str| {
            let entries = std::fs::read_dir(data.join(folder)).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let mut left = [of("native/boxes"), of("native/volumes"), of("local/boxes")].concat();
        left.extend(of("records").into_iter().filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.ends_with(".json")
        }));
        left
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.seawall(&["server", "stop"]);
    }
}

/// Objects of the kernel that an installation can leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Kernel {
    mounts: Vec<String>,
    loops: BTreeSet<String>,
    groups: BTreeSet<PathBuf>,
}

impl Kernel {
    /// Those of this installation alone: tests of others run at the same time.
    fn now(world: &World, installation: &str) -> Kernel {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let data = world.data.path().display().to_string();
        let backing =
            |entry: &Path| std::fs::read_to_string(entry.join("loop/backing_file")).unwrap_or_default();
        let blocks = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let loops = blocks.map(|entry| backing(&entry.path())).filter(|file| file.contains(&data)).collect();
        let mounts = mounts.lines().filter(|mount| mount.contains(&data)).map(str::to_owned).collect();
        Kernel { mounts, loops, groups: groups(installation) }
    }

    /// Waits until it is as it was before: control groups go a moment after their last process.
    fn again(world: &World, installation: &str, before: &Kernel) -> Kernel {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let now = Kernel::now(world, installation);
            if now == *before || Instant::now() > deadline {
                return now;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Paths of all control groups whose name has this in it.
fn groups(name: &str) -> BTreeSet<PathBuf> {
    let tops = ["memory/seawall", "cpu", "pids/seawall", "blkio/seawall", "seawall"];
    let of =
        |top: &str| std::fs::read_dir(Path::new("/sys/fs/cgroup").join(top)).into_iter().flatten().flatten();
    let all = tops.iter().flat_map(|top| of(top)).map(|entry| entry.path()).filter(|path| path.is_dir());
    all.filter(|path| {
        let path = path.to_string_lossy();
        // Groups that wait to be used go when the next process opens the data folder.
        path.contains(name) && !path.contains("-spare-")
    })
    .collect()
}

/// The beginning of the names of all groups of this installation, from one of its boxes.
fn installation(world: &World, create: &[&str]) -> String {
    let id = world.ok(create).trim().to_owned();
    let name = groups(&id).first().map(|group| group.file_name().unwrap().to_string_lossy().into_owned());
    world.ok(&["rm", "-f", "--volumes", &id]);
    quiet(world);
    // Without control groups there are none to be left.
    name.map_or(id.clone(), |name| name.replace(&id, ""))
}

fn pid_of(world: &World, id: &str) -> Option<PathBuf> {
    let run = world.data.path().join(format!("data/native/boxes/{id}/run"));
    let pid = std::fs::read_to_string(run).ok()?.split_whitespace().next()?.to_owned();
    Some(PathBuf::from(format!("/proc/{pid}/stat")))
}

fn lives(stat: &Path) -> bool {
    std::fs::read_to_string(stat).is_ok_and(|text| !text.contains(") Z ") && !text.contains(") X "))
}

/// Whatever the crash left: usable, or gone with everything.
fn settle(world: &World, step: &str) {
    for (id, state) in world.list() {
        let usable = matches!(state.as_str(), "created" | "running" | "stopped");
        assert!(usable, "after `{step}` it is {state}");
        world.ok(&["start", &id]);
        world.ok(&["exec", &id, "--", "true"]);
        let process = pid_of(world, &id).unwrap();
        assert!(lives(&process));
        world.ok(&["rm", "-f", "--volumes", &id]);
        assert!(!lives(&process), "after `{step}` a process lives on");
    }
}

/// Waits until the server has removed what it has only put aside yet.
fn quiet(world: &World) {
    let deadline = Instant::now() + PATIENCE;
    let aside = || {
        let left = world.leftovers();
        left.iter()
            .any(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".gone")))
    };
    while aside() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn volumes(world: &World) -> Vec<String> {
    world.ok(&["volumes", "ls", "-q"]).lines().map(str::to_owned).collect()
}

fn killed(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn create_is_killed_at_each_step(create: &[&str]) {
    let world = World::new();
    let installation = installation(&world, create);
    let kernel = Kernel::now(&world, &installation);
    let mut steps = Vec::new();
    for number in 1..MANY {
        let Some((step, child)) = world.hold(create, number) else { break };
        killed(child);
        settle(&world, &step);
        quiet(&world);
        assert_eq!(world.leftovers(), Vec::<PathBuf>::new(), "after `{step}`");
        assert_eq!(Kernel::again(&world, &installation, &kernel), kernel, "after `{step}`");
        steps.push(step);
    }
    assert!(steps.len() >= 8, "only {steps:?}");
    world.list().iter().for_each(|(id, _)| drop(world.ok(&["rm", "-f", "--volumes", id])));
}

fn remove_is_killed_at_each_step(create: &[&str], remove: &[&str], keeps: bool) {
    let world = World::new();
    let installation = installation(&world, create);
    let kernel = Kernel::now(&world, &installation);
    let mut steps = Vec::new();
    for number in 1..MANY {
        let id = world.ok(create).trim().to_owned();
        let process = pid_of(&world, &id).unwrap();
        let held = world.hold(&[remove, &[&id]].concat(), number);
        let Some((step, child)) = held else {
            world.list();
            volumes(&world).iter().for_each(|volume| drop(world.ok(&["volumes", "rm", volume])));
            break;
        };
        killed(child);
        // It is stopped first, and until its removal is recorded it may be used again.
        let begun = world.list().is_empty();
        settle(&world, &step);
        assert!(!lives(&process), "after `{step}` a process lives on");
        let kept = if keeps && begun { vec![id.clone()] } else { vec![] };
        assert_eq!(volumes(&world), kept, "after `{step}`");
        volumes(&world).iter().for_each(|volume| drop(world.ok(&["volumes", "rm", volume])));
        quiet(&world);
        assert_eq!(world.leftovers(), Vec::<PathBuf>::new(), "after `{step}`");
        assert_eq!(Kernel::again(&world, &installation, &kernel), kernel, "after `{step}`");
        assert!(begun || steps.len() < 2, "after `{step}` it is still there");
        steps.push(step);
    }
    assert!(steps.len() >= 6, "only {steps:?}");
}

#[test]
fn a_create_that_is_killed_leaves_it_usable_or_gone() {
    create_is_killed_at_each_step(&["create"]);
}

#[test]
fn a_removal_that_is_killed_is_finished() {
    remove_is_killed_at_each_step(&["create"], &["rm", "-f", "--volumes"], false);
}

#[test]
fn a_removal_that_is_killed_keeps_the_volume_that_was_to_be_kept() {
    remove_is_killed_at_each_step(&["create"], &["rm", "-f"], true);
}

#[test]
fn the_same_with_a_disk_of_its_own() {
    if !rustix::process::geteuid().is_root() {
        // Not captured, so that it is counted.
        let _ = writeln!(
            std::io::stderr(),
            "skipped crash::the_same_with_a_disk_of_its_own: capability: disk limits need root"
        );
        return;
    }
    create_is_killed_at_each_step(&["create", "--disk-mb", "32"]);
    remove_is_killed_at_each_step(&["create", "--disk-mb", "32"], &["rm", "-f", "--volumes"], false);
}
