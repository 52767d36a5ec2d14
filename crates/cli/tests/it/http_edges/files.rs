//! V4 over HTTP: files listed, shown as a tree, read in parts, written, moved; and their versions.

use crate::http_edges::{
    client::escaped,
    server::{Server, text},
};
use serde_json::{Value, json};

struct Files {
    server: Server,
    id: String,
}

impl Files {
    fn new() -> Files {
        let server = Server::start();
        let id = server.sandbox();
        Files { server, id }
    }

    fn path(&self, rest: &str) -> String {
        format!("/sandboxes/{}/{rest}", self.id)
    }

    /// The paths of a page, and where the next begins.
    #[track_caller]
    fn list(&self, query: &str) -> (Vec<String>, Option<String>) {
        let page = self.server.get(&self.path(&format!("files{query}"))).is(200).json();
        let items = page["items"].as_array().unwrap();
        let next = page["next"].as_str().map(str::to_owned);
        (items.iter().map(|each| text(&each["path"])).collect(), next)
    }

    #[track_caller]
    fn write(&self, path: &str, body: &[u8]) -> Value {
        self.server.put(&self.path(&format!("content?path={}", escaped(path))), body).is(200).json()
    }

    #[track_caller]
    fn read(&self, path: &str) -> Vec<u8> {
        self.server.get(&self.path(&format!("content?path={}", escaped(path)))).is(200).body
    }

    fn run(&self, command: &str) -> String {
        self.server.run(&self.id, command)
    }
}

#[test]
fn v4_files_are_listed_by_path_depth_and_kind() {
    let files = Files::new();
    files.run(
        "mkdir -p a/b/c .hidden; touch a/one.rs a/two.txt a/b/three.rs top.rs .hidden/x; ln -s top.rs link",
    );
    let (paths, next) = files.list("");
    assert_eq!(paths, ["/work/.hidden", "/work/a", "/work/link", "/work/top.rs"]);
    assert_eq!(next, None);
    assert_eq!(files.list("?hidden=false").0, ["/work/a", "/work/link", "/work/top.rs"]);
    assert_eq!(files.list("?path=a").0, ["/work/a/b", "/work/a/one.rs", "/work/a/two.txt"]);
    assert_eq!(files.list("?path=/work/a/b").0, ["/work/a/b/c", "/work/a/b/three.rs"]);
    let deep = files.list("?hidden=false&depth=3&pattern=*.rs").0;
    assert_eq!(deep, ["/work/a/b/three.rs", "/work/a/one.rs", "/work/top.rs"]);
    assert_eq!(files.list("?hidden=false&depth=9&kind=directory").0, ["/work/a", "/work/a/b", "/work/a/b/c"]);
    let links = files.server.get(&files.path("files?kind=symlink")).is(200).json();
    let link = &links["items"][0];
    assert_eq!(
        (&link["name"], &link["kind"], &link["target"]),
        (&json!("link"), &json!("symlink"), &json!("top.rs"))
    );
    files.server.get(&files.path("files?path=missing")).refused(404, "not_found");
    let file = files.server.get(&files.path("files?path=top.rs"));
    assert!(matches!(file.status, 400 | 409), "{} {}", file.status, file.text());
    files.server.get(&files.path("files?kind=door")).refused(400, "invalid_query");
}

#[test]
fn v4_lists_come_in_pages_of_up_to_a_thousand() {
    let files = Files::new();
    files.run(
        "mkdir many; cd many; for i in $(seq 1001 2500); do : > f$i; done; touch 'with space & more' 'ünï'",
    );
    let (first, next) = files.list("?path=many&limit=1000");
    assert_eq!(first.len(), 1000);
    let next = next.expect("there are more");
    let (second, end) = files.list(&format!("?path=many&limit=1000&after={}", escaped(&next)));
    assert_eq!((second.len(), end), (502, None));
    let all: Vec<&String> = first.iter().chain(&second).collect();
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "they are not in order");
    // Filters leave no gaps in a page.
    let (found, _) = files.list("?path=many&limit=10&pattern=*99");
    assert_eq!(found.len(), 10);
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let (page, next) = files.list(&format!("?path=many&limit=7&pattern=f24*{after}"));
        assert!(page.len() <= 7);
        seen.extend(page);
        match next {
            Some(next) => after = format!("&after={}", escaped(&next)),
            None => break,
        }
    }
    assert_eq!(seen.len(), 100);
    files.server.get(&files.path("files?limit=1001")).problem(400);
    assert_eq!(files.read("many/with space & more"), b"");
}

#[test]
fn v4_a_tree_has_the_users_paths() {
    let files = Files::new();
    files.run("mkdir -p a/b/c/d; echo x > a/b/file; touch top");
    let tree = files.server.get(&files.path("tree")).is(200).json();
    assert_eq!((&tree["truncated"], &tree["root"]["path"]), (&json!(false), &json!("/work")));
    let names = |node: &Value| -> Vec<String> {
        node["children"].as_array().unwrap().iter().map(|child| text(&child["name"])).collect()
    };
    // What is the service's own is nobody's file.
    files.server.post(&files.path("sync"), &json!({})).is(200);
    let tree = files.server.get(&files.path("tree")).is(200).json();
    assert_eq!(names(&tree["root"]), ["a", "top"]);
    let b = &tree["root"]["children"][0]["children"][0];
    assert_eq!((&b["path"], names(b)), (&json!("/work/a/b"), vec!["c".to_owned(), "file".to_owned()]));
    // Deeper than three is asked for.
    assert!(b["children"][0].get("children").is_none(), "{b}");
    let tree = files.server.get(&files.path("tree?path=a/b&depth=5")).is(200).json();
    assert_eq!(tree["root"]["path"], "/work/a/b");
    assert_eq!(names(&tree["root"]["children"][0]), ["d"]);
    files.server.get(&files.path("tree?depth=0")).problem(400);
}

#[test]
fn v4_contents_are_bytes_in_whole_and_in_part() {
    let files = Files::new();
    let info = files.write("data", b"0123456789");
    assert_eq!(
        (&info["path"], &info["size"], &info["kind"]),
        (&json!("/work/data"), &json!(10), &json!("file"))
    );
    let path = files.path("content?path=data");
    let whole = files.server.get(&path).is(200);
    assert_eq!(whole.body, b"0123456789");
    assert_eq!(whole.header("content-type"), Some("application/octet-stream"));
    assert_eq!(whole.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    let part = |range: &str| files.server.ask("GET", &path).header("range", range).send();
    for (range, bytes, place) in [
        ("bytes=2-5", "2345", "bytes 2-5/10"),
        ("bytes=4-", "456789", "bytes 4-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
        ("bytes=8-100", "89", "bytes 8-9/10"),
        ("bytes=0-0", "0", "bytes 0-0/10"),
    ] {
        let answer = part(range).is(206);
        assert_eq!((answer.text().as_str(), answer.header("content-range")), (bytes, Some(place)), "{range}");
    }
    for range in ["bytes=10-", "bytes=-0"] {
        let answer = part(range);
        answer.refused(416, "invalid_range");
        assert_eq!(answer.header("content-range"), Some("bytes */10"), "{range}");
    }
    // What is no single range is ignored.
    for range in ["bytes=0-1,3-4", "lines=1-2", "bytes=5-2"] {
        assert_eq!(part(range).is(200).body, b"0123456789", "{range}");
    }
    let head = files.server.ask("HEAD", &path).send().is(200);
    assert_eq!((head.header("content-length"), head.body.len()), (Some("10"), 0));
}

#[test]
fn v4_who_has_it_is_not_sent_it_again() {
    let files = Files::new();
    files.write("data", b"0123456789");
    let path = files.path("content?path=data");
    let tag = files.server.get(&path).is(200).header("etag").unwrap().to_owned();
    let with = |name: &str, value: &str| files.server.ask("GET", &path).header(name, value);
    assert!(with("if-none-match", &tag).send().is(304).body.is_empty());
    with("if-none-match", "\"other\"").send().is(200);
    with("if-range", &tag).header("range", "bytes=0-1").send().is(206);
    files.write("data", b"9876543210");
    with("if-none-match", &tag).send().is(200);
    // Parts of two files are no file.
    let whole = with("if-range", &tag).header("range", "bytes=0-1").send().is(200);
    assert_eq!(whole.body, b"9876543210");
}

#[test]
fn v4_reading_stays_beneath_its_source_and_its_limit() {
    let files = Files::new();
    files.run("echo work > note; echo home > ~/note; ln -s /etc/passwd out");
    let read = |query: &str| files.server.get(&files.path(&format!("content?{query}")));
    assert_eq!(read("path=note&source=working_dir").is(200).text(), "work\n");
    assert_eq!(read("path=note&source=home_dir").is(200).text(), "home\n");
    assert_eq!(read("path=/work/note").is(200).text(), "work\n");
    for outside in ["path=../etc/passwd", "path=out", "path=a/../../etc/passwd"] {
        let answer = read(&format!("{outside}&source=working_dir"));
        assert!((400..500).contains(&answer.status), "{outside}: {} {}", answer.status, answer.text());
        answer.problem(answer.status);
    }
    read("path=note&max_size=4").refused(413, "too_large");
    read("path=note&max_size=5").is(200);
    read("path=note&source=elsewhere").refused(400, "invalid_query");
    read("path=.").problem(400);
}

#[test]
fn v4_writing_is_whole_or_not_at_all() {
    let files = Files::new();
    // Larger than any call with JSON may be, and all byte values.
    let large: Vec<u8> = (0..9_000_000_u32).map(|number| (number.wrapping_mul(31) >> 3) as u8).collect();
    assert_eq!(files.write("deep/er/large", &large)["size"], large.len());
    assert!(files.read("deep/er/large") == large, "it is not what was written");
    // Whose body breaks off leaves the file as it was.
    files.write("kept", b"before");
    let ask = files.server.ask("PUT", &files.path("content?path=kept")).header("content-length", "100");
    let mut stream = ask.begin();
    std::io::Write::write_all(&mut stream, b"half").unwrap();
    drop(stream);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(files.read("kept"), b"before");
    let ours = "-e '^.sandbox-state' -e '^.seawall'";
    assert_eq!(files.run(&format!("ls -A | grep -v {ours}; ls -A deep/er")), "deep\nkept\nlarge\n");
    // Modes, folders that are missing, limits.
    let put = |query: &str| {
        files.server.put(&files.path(&format!("content?path={query}")), "#!/bin/sh\necho ran\n")
    };
    put("tool&mode=0755").is(200);
    assert_eq!(files.run("./tool; stat -c %a tool"), "ran\n755\n");
    put("no/where/file&parents=false").problem(404);
    put("small&max_size=3").refused(413, "too_large");
    assert_eq!(files.write("empty", b"")["size"], 0);
}

#[test]
fn v4_files_are_moved_and_removed() {
    let files = Files::new();
    let made = files
        .server
        .post(&files.path("directories"), &json!({ "path": "a/b", "mode": 0o700 }))
        .is(201)
        .json();
    assert_eq!((&made["path"], &made["kind"]), (&json!("/work/a/b"), &json!("directory")));
    files.write("a/one", b"1");
    files.write("a/two", b"2");
    let moved = |from: &str, to: &str, overwrite: bool| {
        files.server.post(&files.path("move"), &json!({ "from": from, "to": to, "overwrite": overwrite }))
    };
    moved("a/one", "a/b/one", false).is(204);
    assert_eq!(files.read("a/b/one"), b"1");
    moved("a/two", "a/b/one", false).problem(409);
    moved("a/two", "a/b/one", true).is(204);
    assert_eq!(files.read("a/b/one"), b"2");
    let removed = |query: &str| files.server.delete(&files.path(&format!("files?path={query}")));
    let full = removed("a");
    assert!(matches!(full.status, 400 | 409), "{} {}", full.status, full.text());
    removed("a&recursive=true").is(204);
    removed("a").problem(404);
    assert_eq!(files.list("").0, Vec::<String>::new());
}

impl Files {
    fn sync(&self, body: &Value) {
        self.server.post(&self.path("sync"), body).is(200);
    }

    fn restore(&self, body: &Value) -> u16 {
        self.server.post(&self.path("restore"), body).status
    }

    fn versions(&self) -> Vec<Value> {
        self.server.get(&self.path("versions")).is(200).json()["items"].as_array().unwrap().clone()
    }

    /// Paths that differ, and how.
    fn differing(&self, query: &str) -> Vec<(String, String)> {
        let found = self.server.get(&self.path(&format!("versions/diff?{query}"))).is(200).json();
        let one = |each: &Value| (text(&each["path"]), text(&each["change"]));
        let mut all: Vec<_> = found["items"].as_array().unwrap().iter().map(one).collect();
        all.sort();
        all
    }

    /// Two versions; their names.
    fn two_versions(&self) -> (i64, i64) {
        self.run("echo one > changed; echo x > removed; mkdir sub; echo deep > sub/file");
        self.sync(&json!({ "dry_run": true }));
        assert_eq!(self.versions().len(), 0, "nothing was to be done");
        self.sync(&json!({}));
        self.run("echo two > changed; rm removed; echo new > added");
        self.sync(&json!({}));
        let made = self.versions();
        let numbers: Vec<u64> = made.iter().map(|each| each["sequence"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [1, 2], "{made:?}");
        assert!(made.iter().all(|each| each["files"].as_u64() >= Some(3)), "{made:?}");
        (made[0]["version"].as_i64().unwrap(), made[1]["version"].as_i64().unwrap())
    }
}

#[test]
fn s6_versions_are_made_and_compared() {
    let files = Files::new();
    let (first, second) = files.two_versions();
    assert!(first < second);
    let wanted = [("added", "added"), ("changed", "changed"), ("removed", "removed")];
    let wanted = wanted.map(|(path, change)| (path.to_owned(), change.to_owned()));
    // By their names, and by their numbers; the newest is meant where none is said.
    assert_eq!(files.differing(&format!("from={first}&to={second}")), wanted);
    assert_eq!(files.differing("from=1"), wanted);
    files.server.get(&files.path("versions/diff")).refused(400, "invalid_query");
}

#[test]
fn s6_versions_are_brought_back() {
    let files = Files::new();
    let (first, second) = files.two_versions();
    // One file of a version, then all of it.
    assert_eq!(files.restore(&json!({ "version": first, "path": "removed" })), 200);
    assert_eq!(files.run("cat removed changed"), "x\ntwo\n");
    assert_eq!(files.restore(&json!({ "version": 1 })), 200);
    assert_eq!(files.run("ls; cat changed removed sub/file"), "changed\nremoved\nsub\none\nx\ndeep\n");
    // What was there before is a version too.
    assert!(files.versions().len() > 2, "{:?}", files.versions());
    assert_eq!(files.restore(&json!({ "version": second })), 200);
    assert_eq!(files.run("ls; cat changed"), "added\nchanged\nsub\ntwo\n");
    let unknown = files.restore(&json!({ "version": 12345 }));
    assert!(matches!(unknown, 400 | 404), "{unknown}");
}
