//! The template of a repository: git runs in the box, which has no network; its way out is the server, which adds the
//! token, for that repository alone. The other end is git's own HTTP server behind a small gate of Python.

use crate::{
    docker::through,
    http_turns::served::Served,
    world::{World, stderr, stdout},
};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

const TOKEN: &str = "ghp-test-71d0c4";

/// Repositories behind HTTP that only the token opens.
struct Hub {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl Hub {
    fn start() -> Hub {
        Hub::with_token(TOKEN)
    }

    /// Without a token everybody may read.
    fn with_token(token: &str) -> Hub {
        let folder = tempfile::tempdir().unwrap();
        for name in ["owner/repo.git", "owner/other.git"] {
            let bare = folder.path().join(name);
            std::fs::create_dir_all(&bare).unwrap();
            git(&bare, &["init", "-q", "--bare", "-b", "main"]);
            git(&bare, &["config", "http.receivepack", "true"]);
        }
        let hub = folder.path().join("owner/repo.git");
        let work = folder.path().join("work");
        std::fs::create_dir(&work).unwrap();
        git(&work, &["init", "-q", "-b", "main"]);
        std::fs::write(work.join("README"), "from the hub\n").unwrap();
        git(&work, &["add", "README"]);
        git(&work, &["commit", "-q", "-m", "first"]);
        git(&work, &["push", "-q", &hub.display().to_string(), "main"]);
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standin/hub.py");
        let mut child = Command::new("python3")
            .arg(program)
            .env("HUB_TOKEN", token)
            .env("HUB_ROOT", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Hub { child, port: line.trim().parse().unwrap(), folder }
    }

    fn url(&self, name: &str) -> String {
        format!("http://127.0.0.1:{}/{name}", self.port)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn git(folder: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "safe.directory=*"])
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "git {args:?}: {}", stderr(&output));
    stdout(&output)
}

fn chat(world: &World, conversation: &str, prompt: &str) -> std::process::Output {
    let mut command = world.command();
    command.env("HUB_KEY", TOKEN).args(["chat", "-c", conversation, "-t", "ours", prompt]).output().unwrap()
}

#[test]
fn h7_a_repository_is_cloned_fetched_and_pushed_without_its_token_in_the_box() {
    let (hub, world) = (Hub::start(), World::new());
    std::fs::create_dir(world.data().join("templates")).unwrap();
    let template = format!(
        "base = \"github\"\n[git]\nrepo = \"{}\"\ntoken_env = \"HUB_KEY\"\ndepth = 1\n",
        hub.url("owner/repo")
    );
    std::fs::write(world.data().join("templates/ours.toml"), template).unwrap();
    let conversation = seawall_api::ConversationId::generate().to_string();
    let first = chat(&world, &conversation, "cat README; git log --oneline | wc -l; env; cat .git/config");
    let said = stdout(&first);
    assert!(first.status.success() && said.starts_with("from the hub\n1\n"), "{said}{}", stderr(&first));
    assert!(!said.contains(TOKEN), "the token is in the box");

    // What is ours is none of git's business.
    let clean = "git status --porcelain; git clean -fdq; git add -A; git status --porcelain; test -e .sandbox-state && echo kept";
    assert_eq!(stdout(&chat(&world, &conversation, clean)), "kept\n");

    let push = "git config user.name a; git config user.email a@example.com; echo more >> README; \
        git commit -qam second && git push -q origin HEAD:main && echo pushed";
    let pushed = chat(&world, &conversation, push);
    assert_eq!(stdout(&pushed), "pushed\n", "{}", stderr(&pushed));
    let bare = hub.folder.path().join("owner/repo.git");
    assert_eq!(git(&bare, &["log", "--format=%s", "main"]), "second\nfirst\n");

    // Somebody else pushes, and the box fetches.
    let work = hub.folder.path().join("work");
    git(&work, &["pull", "-q", &bare.display().to_string(), "main"]);
    std::fs::write(work.join("new"), "new\n").unwrap();
    git(&work, &["add", "new"]);
    git(&work, &["commit", "-q", "-m", "third"]);
    git(&work, &["push", "-q", &bare.display().to_string(), "HEAD:main"]);
    let fetched = chat(&world, &conversation, "git pull -q origin main 2>&1; cat new");
    assert_eq!(stdout(&fetched), "new\n", "{}", stderr(&fetched));

    cleaned(&world, &conversation);
    let other = format!("git ls-remote {} 2>&1; true", hub.url("owner/other.git"));
    let refused = stdout(&chat(&world, &conversation, &other));
    assert!(refused.contains("403") || refused.contains("may reach"), "{refused}");
    the_token_is_nowhere(&world, &conversation);
}

/// S3: an agent that cleans its repository deletes what the sync keeps in it, and loses nothing.
fn cleaned(world: &World, conversation: &str) {
    let work =
        "echo mine >> README; git commit -qam mine; echo more >> README; git gc -q; git clean -fdxq; ls -A";
    assert_eq!(stdout(&chat(world, conversation, work)), ".git\nREADME\nnew\n");
    let sandbox = sandbox_of(world, conversation);
    world.ok(["rm", "-f", "--volumes", &sandbox]);
    let look = "ls -A | grep -v -e sandbox-state -e seawall; tail -n 2 README; git status --porcelain; git fsck 2>&1; git log -1 --format=%s";
    assert_eq!(stdout(&chat(world, conversation, look)), ".git\nREADME\nnew\nmine\nmore\n M README\nmine\n");
}

fn sandbox_of(world: &World, conversation: &str) -> String {
    let all = world.json(["conversations", "--json"]);
    let found = all["items"].as_array().unwrap().iter().find(|each| each["id"] == *conversation);
    found.unwrap()["sandbox_id"].as_str().unwrap().to_owned()
}

fn the_token_is_nowhere(world: &World, conversation: &str) {
    let sandbox = sandbox_of(world, conversation);
    let look = format!("grep -rlaF '{TOKEN}' /work /home /root /tmp /etc /run /var 2>/dev/null; true");
    assert_eq!(world.ok(["exec", "--user", "root", &sandbox, "--", "sh", "-c", &look]), "");
}

#[test]
fn p10_the_repository_of_a_request_is_cloned_at_the_first_start_and_read_only() {
    let (hub, served) = (Hub::with_token(""), Served::new());
    let url = hub.url("owner/repo");
    let id = through(&served, &["create", "--source", &url]).trim().to_owned();
    let sh = |script: &str| through(&served, &["exec", &id, "--", "sh", "-c", script]);
    assert_eq!(sh("cat README; git log --format=%s; git status --porcelain"), "from the hub\nfirst\n");
    // The way to the repository was there for the clone only.
    assert_ne!(sh("git push origin HEAD:main > /dev/null 2>&1; echo $?"), "0\n");
    sh("rm README; echo mine > own");
    through(&served, &["stop", &id]);
    through(&served, &["start", &id]);
    assert_eq!(sh("ls"), "own\n", "a second start clones nothing");
    through(&served, &["rm", "-f", "--volumes", &id]);
    let create = |source: &str| {
        let output = served
            .world
            .command()
            .env("SEAWALL_URL", format!("http://{}", served.address))
            .env("SEAWALL_KEY", &served.key)
            .args(["create", "--source", source])
            .output()
            .unwrap();
        assert!(!output.status.success(), "{source}");
        stderr(&output)
    };
    let said = create("https://user:secret@github.com/owner/repo");
    assert!(said.contains("without credentials"), "{said}");
    let said = create(&hub.url("owner/none"));
    assert!(said.contains("could not be cloned"), "{said}");
    assert!(through(&served, &["ls", "-q"]).is_empty(), "a sandbox without its repository is left");
}
