//! Syncs whose server or guest is killed with -9 at random moments: nothing is lost, and every version is whole.

use crate::world;

use crate::world::{World, stderr};
use std::{
    collections::BTreeMap,
    process::{Child, Stdio},
    time::Duration,
};

const KILLS: u64 = 200;
const FILES: u64 = 12;

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

struct Story {
    world: World,
    id: String,
    numbers: Numbers,
    /// What the user wrote and did not delete.
    expected: BTreeMap<String, String>,
    /// About how long a sync takes, in microseconds. It follows how many are killed in time, since the machine is more
    /// or less busy.
    takes: u64,
    killed: u64,
}

impl Story {
    fn new() -> Story {
        let world = World::new();
        let id = world.create();
        Story {
            world,
            id,
            numbers: Numbers(0x2545_f491_4f6c_dd1d),
            expected: BTreeMap::new(),
            takes: 1,
            killed: 0,
        }
    }

    /// The user changes some files, and knows what is there.
    fn edit(&mut self, round: u64) {
        let mut script = String::from("mkdir -p d");
        for _ in 0..3 {
            let name = format!("d/f{}", self.numbers.below(FILES));
            if self.numbers.below(4) == 0 {
                script.push_str(&format!("; rm -f {name}"));
                self.expected.remove(&name);
            } else {
                // Some kilobytes, so that there is something to be killed in.
                let body = format!("{round} ").repeat(500);
                script.push_str(&format!("; printf '%0.s{round} ' $(seq 500) > {name}"));
                self.expected.insert(name, body);
            }
        }
        self.world.ok(["exec", &self.id, "--", "sh", "-c", &script]);
    }

    fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.world.command();
        command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// Waits for a moment of a sync.
    fn wait(&mut self, child: &mut Child) {
        std::thread::sleep(Duration::from_micros(self.numbers.below(self.takes)));
        if child.try_wait().unwrap().is_none() {
            self.killed += 1;
            self.takes += self.takes / 8;
        } else {
            self.takes -= self.takes / 4;
        }
    }

    /// Kills the server after a moment. The command may ask the next one again.
    fn kill_host(&mut self, args: &[&str]) {
        let server = self.world.server_pid().unwrap().to_string();
        let mut child = self.spawn(args);
        self.wait(&mut child);
        world::kill_9(&[&server]);
        child.wait().unwrap();
    }

    /// Kills the guest, and the box with it, after a moment.
    fn kill_guest(&mut self, id: &str, args: &[&str]) {
        let pid = self.world.guest(id);
        let mut child = self.spawn(args);
        self.wait(&mut child);
        let killed = std::process::Command::new("kill").args(["-9", &pid]).output().unwrap();
        assert!(killed.status.success(), "{}", stderr(&killed));
        child.wait().unwrap();
        // The command may have had it started again already.
        world::eventually("the killed box is over", || !world::is_alive(&pid)).unwrap();
        self.world.ok(["start", id]);
    }

    fn found(&self, id: &str) -> BTreeMap<String, String> {
        let listed =
            self.world.ok(["exec", id, "--", "sh", "-c", "for f in d/*; do echo $f; cat $f; echo; done"]);
        let mut lines = listed.lines();
        let mut found = BTreeMap::new();
        while let (Some(name), Some(body)) = (lines.next(), lines.next()) {
            found.insert(name.to_owned(), body.to_owned());
        }
        found
    }

    /// All that the user has, and nothing else. Told by names: the bodies are long.
    fn check(&self, id: &str, when: &str) {
        let found = self.found(id);
        let names = |files: &BTreeMap<String, String>, others: &BTreeMap<String, String>| -> Vec<String> {
            let differs = |(name, body): &(&String, &String)| others.get(*name) != Some(*body);
            files.iter().filter(differs).map(|(name, body)| format!("{name}={:.8}", body)).collect()
        };
        let (wrong, missing) = (names(&found, &self.expected), names(&self.expected, &found));
        assert!(wrong.is_empty() && missing.is_empty(), "{when}: there is {wrong:?} instead of {missing:?}");
    }

    /// A new sandbox gets the files, while the process that brings them is killed, again and again.
    fn restore_elsewhere(&mut self) {
        let (new, id) = (self.world.create(), self.id.clone());
        let args = ["restore", &new, "--from", &id];
        match self.numbers.below(2) {
            0 => self.kill_host(&args),
            _ => self.kill_guest(&new, &args),
        }
        self.world.ok(args);
        self.check(&new, "restored elsewhere");
        assert!(self.world.ok(["verify", &new]).starts_with("all is whole"));
        self.world.ok(["rm", "-f", "--volumes", &new]);
    }
}

#[test]
fn s10_nothing_is_lost_by_two_hundred_kills() {
    let mut story = Story::new();
    for round in [0, 0, 0] {
        story.edit(round);
        let begun = std::time::Instant::now();
        story.world.ok(["sync", &story.id]);
        story.takes = u64::try_from(begun.elapsed().as_micros()).unwrap();
    }
    for round in 1..=KILLS {
        story.edit(round);
        let id = story.id.clone();
        match round % 10 {
            0 => {
                story.world.ok(["sync", &id]);
                story.restore_elsewhere();
            }
            3 | 6 | 9 => story.kill_guest(&id, &["sync", &id]),
            _ => story.kill_host(&["sync", &id]),
        }
        story.check(&id, &format!("after kill {round}"));
    }
    let id = story.id.clone();
    story.world.ok(["sync", &id]);
    assert!(story.world.ok(["verify", &id]).starts_with("all is whole"));
    story.world.ok(["prune", &id, "--keep", "3"]);
    assert!(story.world.ok(["verify", &id]).starts_with("all is whole: 3 versions"));
    story.restore_elsewhere();
    assert!(story.killed > KILLS / 3, "only {} were killed in time", story.killed);
}
