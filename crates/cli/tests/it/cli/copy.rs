//! `cp`: what goes in comes out the same.

use crate::world::{World, stderr};
use std::{
    ffi::OsStr,
    fs::{self, Permissions},
    io::Write,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::Path,
    process::Stdio,
    time::{Duration, SystemTime},
};

fn write(path: &Path, body: &[u8], mode: u32, age: u64) {
    fs::write(path, body).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_600_000_000 + age, 123_456_789);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

/// A tree with everything that is easily lost.
fn odd_tree(top: &Path) {
    fs::create_dir_all(top.join("sub/empty")).unwrap();
    write(&top.join("plain"), b"text", 0o644, 1);
    write(&top.join("sub/tool"), b"#!/bin/sh\n", 0o755, 2);
    write(&top.join("sub/secret"), b"", 0o600, 3);
    write(&top.join("sub/large"), &vec![7; 5 << 20], 0o640, 4);
    write(&top.join(OsStr::from_bytes(b"not-\xff-text")), b"bytes", 0o644, 5);
    for number in 0..40 {
        write(&top.join(format!("sub/many-{number}")), format!("{number}").as_bytes(), 0o644, number);
    }
    symlink("sub/tool", top.join("link")).unwrap();
    symlink("/nowhere/at/all", top.join("dangling")).unwrap();
    fs::set_permissions(top.join("sub/empty"), Permissions::from_mode(0o750)).unwrap();
    for directory in ["sub/empty", "sub"] {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
        fs::File::open(top.join(directory)).unwrap().set_modified(time).unwrap();
    }
}

/// Names, kinds, modes, times, targets and bodies, sorted.
fn picture(top: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut waiting = vec![top.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(top).unwrap().as_os_str().as_bytes().escape_ascii().to_string();
            if meta.is_symlink() {
                lines.push(format!("{name} -> {}", fs::read_link(&path).unwrap().display()));
                continue;
            }
            let body = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let sum: u64 = body.iter().map(|&byte| u64::from(byte)).sum();
            let (mode, time) = (meta.mode(), (meta.mtime(), meta.mtime_nsec()));
            lines.push(format!("{name} {mode:o} {time:?} {} {sum}", body.len()));
            if meta.is_dir() {
                waiting.push(path);
            }
        }
    }
    lines.sort();
    lines
}

#[test]
fn a_directory_comes_back_as_it_was() {
    let world = World::new();
    let id = world.create();
    let folder = tempfile::tempdir().unwrap();
    let (here, back) = (folder.path().join("tree"), folder.path().join("back"));
    odd_tree(&here);
    world.ok([OsStr::new("cp"), here.as_os_str(), OsStr::new(&format!("{id}:/work/tree"))]);
    world.ok([OsStr::new("cp"), OsStr::new(&format!("{id}:/work/tree")), back.as_os_str()]);
    assert_eq!(picture(&back), picture(&here));
    let meta = |path: &Path| (fs::metadata(path).unwrap().mode(), fs::metadata(path).unwrap().mtime());
    assert_eq!(meta(&back), meta(&here));

    // Again, over what is there: inside the directory this time.
    world.ok([OsStr::new("cp"), OsStr::new(&format!("{id}:tree")), back.as_os_str()]);
    assert_eq!(picture(&back.join("tree")), picture(&here));
    // And the contents alone.
    let contents = folder.path().join("contents");
    fs::create_dir(&contents).unwrap();
    world.ok([OsStr::new("cp"), OsStr::new(&format!("{id}:tree/.")), contents.as_os_str()]);
    assert_eq!(picture(&contents), picture(&here));
}

#[test]
fn single_files_and_streams() {
    let world = World::new();
    let id = world.create();
    let folder = tempfile::tempdir().unwrap();
    let large: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    fs::write(folder.path().join("large"), &large).unwrap();
    let local = folder.path().join("large").display().to_string();
    world.ok(["cp", &local, &format!("{id}:")]);
    world.ok(["cp", &format!("{id}:/work/large"), &folder.path().join("copy").display().to_string()]);
    assert_eq!(fs::read(folder.path().join("copy")).unwrap(), large);
    let streamed = world.seawall(["cp", &format!("{id}:large"), "-"]);
    assert!(streamed.stdout == large, "{}", stderr(&streamed));

    let mut child =
        world.command().args(["cp", "-", &format!("{id}:new/dir/note")]).stdin(Stdio::piped()).spawn();
    let child = child.as_mut().unwrap();
    child.stdin.take().unwrap().write_all(b"from stdin").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(world.ok(["exec", &id, "--", "cat", "new/dir/note"]), "from stdin");
}

#[test]
fn the_sides_must_make_sense() {
    let world = World::new();
    for args in [["cp", "a", "b"], ["cp", "a:b", "c:d"], ["cp", "-", "-"]] {
        let output = world.seawall(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
    }
    let id = world.create();
    let missing = world.seawall(["cp", &format!("{id}:/work/missing"), "."]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("missing"), "{}", stderr(&missing));
}

#[test]
fn a_link_of_the_sandbox_is_not_written_through() {
    let world = World::new();
    let id = world.create();
    let folder = tempfile::tempdir().unwrap();
    let (victim, out) = (folder.path().join("victim"), folder.path().join("out"));
    fs::create_dir(&victim).unwrap();
    let script = format!("mkdir t && ln -s {} t/evil", victim.display());
    world.ok(["exec", &id, "--", "sh", "-c", &script]);
    let out = out.display().to_string();
    world.ok(["cp", &format!("{id}:t"), &out]);
    world.ok(["exec", &id, "--", "sh", "-c", "rm t/evil && mkdir t/evil && echo x > t/evil/file"]);
    let refused = world.seawall(["cp", &format!("{id}:t/."), &out]);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
}

#[test]
fn a_link_from_an_earlier_copy_is_replaced() {
    let world = World::new();
    let id = world.create();
    let folder = tempfile::tempdir().unwrap();
    let (victim, out) = (folder.path().join("victim"), folder.path().join("out"));
    fs::write(&victim, "mine").unwrap();
    world.ok(["exec", &id, "--", "sh", "-c", &format!("mkdir t && ln -s {} t/report", victim.display())]);
    world.ok(["cp", &format!("{id}:t"), &out.display().to_string()]);
    world.ok(["exec", &id, "--", "sh", "-c", "rm t/report && echo theirs > t/report"]);
    let report = out.join("report");
    world.ok(["cp", &format!("{id}:t/report"), &report.display().to_string()]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    assert_eq!(fs::read_to_string(&report).unwrap(), "theirs\n");
}

#[test]
fn what_cannot_be_copied_is_an_error() {
    let world = World::new();
    let id = world.create();
    let refused = world.seawall(["cp", "/dev/null", &format!("{id}:x")]);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
}

#[test]
fn what_cannot_be_read_is_left_out_and_told() {
    let world = World::new();
    let id = world.create();
    // Nobody but root reads the first; the last lies deeper than a listing goes.
    let script = "mkdir d; echo one > d/one; echo two > d/two; chmod 000 d/one; \
        i=0; while [ $i -lt 140 ]; do mkdir deep; cd deep; i=$((i+1)); done; echo x > bottom";
    world.ok(["exec", &id, "--", "sh", "-c", script]);
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("copy");
    let output = world.seawall(["cp", &format!("{id}:/work"), to.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("left out"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(to.join("d/two")).unwrap(), "two\n");
}
