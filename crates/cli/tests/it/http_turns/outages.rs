//! The disk is full, or the database is down, in the middle of a turn.

use crate::http_turns::{
    client::{ANY, auto},
    served::{Served, counting, numbers, skip, within},
};
use crate::{gates::go, world::World};
use seawall_api::ConversationId;
use serde_json::{Value, json};
use std::{
    fs::File,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};
use tempfile::{NamedTempFile, TempDir};

/// Room for a box, a database and a bucket.
const DISK: u64 = 64 << 20;

/// A file system of its own, over a folder.
struct Disk {
    at: PathBuf,
    _image: NamedTempFile,
}

impl Disk {
    fn over(at: &Path) -> Result<Disk, String> {
        let image = NamedTempFile::new().unwrap();
        image.as_file().set_len(DISK).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(image.path()))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(image.path()).arg(at))?;
        Ok(Disk { at: at.to_owned(), _image: image })
    }

    /// To the last byte.
    fn fill(&self) -> PathBuf {
        let path = self.at.join("filler");
        let mut file = File::create(&path).unwrap();
        for size in [1 << 20, 4096, 1] {
            let piece = vec![0; size];
            while file.write_all(&piece).is_ok() {}
        }
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What was killed may take a moment to be gone.
        let unmounted = (0..50).any(|_| {
            let done = run(Command::new("umount").arg(&self.at));
            done.is_ok() || {
                sleep(Duration::from_millis(100));
                false
            }
        });
        if unmounted {
            let _ = std::fs::remove_dir(&self.at);
        }
    }
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

#[test]
fn m3_http_a_full_disk_loses_nothing_and_counts_nothing_twice() {
    let test = "m3_http_a_full_disk_loses_nothing_and_counts_nothing_twice";
    if !rustix::process::geteuid().is_root() {
        // Not captured, so that it is counted.
        let _ = writeln!(std::io::stderr(), "skipped http_turns::{test}: capability: mounts need root");
        return;
    }
    let world = World::new();
    let disk = match Disk::over(world.data()) {
        Ok(disk) => disk,
        Err(why) => return skip(test, &why),
    };
    // Dropped before the disk is.
    let served = Served::on(world);
    let conversation = ConversationId::generate().to_string();
    let mut view = served.turn(&auto(&conversation), &format!("echo kept > file; {}", counting(200, &[10])));
    view.until_said("\n10\n");
    let filler = disk.fill();
    // M2: what cannot be stored is refused. What is there can be seen, also now.
    let refused = refused_prompt(&served);
    assert_eq!((&refused["retryable"], &refused["code"]), (&json!(true), &json!("unavailable")), "{refused}");
    assert_eq!(served.get(&view.place())["state"], "running");
    go(&served.world, &view.id("sandbox_id"), 10);
    sleep(Duration::from_secs(1));
    std::fs::remove_file(filler).unwrap();
    // The stream was silent meanwhile, and goes on.
    assert_eq!(view.follow_to_the_end(), "completed");
    assert_eq!(view.text(), numbers(200));
    assert_eq!(view.ended()["stats"]["messages_exchanged"], 2);
    assert_eq!(served.messages(&conversation)[1].1, numbers(200));
    let sandbox = view.id("sandbox_id");
    within(60, "its files are saved", || served.sandbox(&sandbox)["unsynced"].is_null());
    assert_eq!(served.said(&conversation, "cat file"), "kept\n");
    assert_eq!(served.stats(&conversation)["messages_exchanged"], 4);
    assert!(served.world.ok(["db", "check"]).starts_with("all agrees"));
}

/// What a prompt gets that cannot be stored. What was begun before the disk was full may still succeed.
fn refused_prompt(served: &Served) -> Value {
    let mut problem = Value::Null;
    within(60, "a prompt is refused", || {
        let ask = served.ask("POST", &format!("{ANY}?stream=false")).json(&json!({"prompt": "true"}));
        let answer = served.send(&ask);
        let refused = answer.status == 503;
        problem = answer.json();
        refused
    });
    problem
}

/// A server of its own: others need theirs.
pub struct Postgres {
    folder: TempDir,
    pub url: String,
}

impl Postgres {
    pub fn start() -> Result<Postgres, String> {
        let folder = tempfile::tempdir().unwrap();
        // It runs as another user.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut postgres = Postgres { folder, url: String::new() };
        postgres.url = postgres.run("start")?;
        Ok(postgres)
    }

    fn run(&self, what: &str) -> Result<String, String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres");
        run(Command::new(script).arg(what).arg(self.folder.path().join("server")))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.run("kill");
    }
}

#[test]
fn m3_http_a_database_that_goes_and_comes_back_ends_no_stream() {
    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => return skip("m3_http_a_database_that_goes_and_comes_back_ends_no_stream", &why),
    };
    let served = Served::with(&format!("[database]\nurl = \"{}\"\n", postgres.url), &[]);
    let conversation = ConversationId::generate().to_string();
    let mut view = served.turn(&auto(&conversation), &counting(300, &[20, 150]));
    for (how, number) in [("stop", 20), ("kill", 150)] {
        view.until_said(&format!("\n{number}\n"));
        postgres.run(how).unwrap();
        go(&served.world, &view.id("sandbox_id"), number);
        sleep(Duration::from_millis(500));
        postgres.run("start").unwrap();
    }
    assert_eq!(view.follow_to_the_end(), "completed");
    assert_eq!(view.text(), numbers(300));
    let usage = json!({"input_tokens": 0, "output_tokens": 0, "cache_tokens": 0});
    assert_eq!((&view.ended()["usage"], &view.ended()["stats"]["messages_exchanged"]), (&usage, &json!(2)));
    assert_eq!(served.messages(&conversation)[1].1, numbers(300));
    assert_eq!(served.said(&conversation, "echo on"), "on\n");
    assert_eq!(served.stats(&conversation)["messages_exchanged"], 4);
    assert_eq!(served.items(&format!("/conversations/{conversation}/turns")).len(), 2);
    assert!(served.world.ok(["db", "check"]).starts_with("all agrees"));
}
