//! Entries that nobody may follow. Each is refused, and the error names the path.

use seawall_api::files::FileName;
use seawall_sync::state::{Limits, StateError, StateFile};
use serde_json::{Value, json};

const MD5: &str = "098f6bcd4621d373cade4e832627b4f6";

/// A file of four bytes that nothing is wrong with.
fn file(path: &str) -> Value {
    json!({"path": path, "checksum": MD5, "size": 4, "modified_at": 1})
}

/// The same with one field changed.
fn but(path: &str, field: &str, value: impl Into<Value>) -> Value {
    let mut file = file(path);
    file[field] = value.into();
    file
}

fn link(path: &str, target: &str) -> Value {
    json!({"path": path, "target": target, "modified_at": 1})
}

/// A state file with these, and one pack.
fn files<const N: usize>(files: [Value; N]) -> Value {
    json!({"version": "1.0", "last_synced_at": 1, "files": files.to_vec(), "packs": [".packs/a"]})
}

/// With an array or object beside the files.
fn beside(mut state: Value, field: &str, value: Value) -> Value {
    state[field] = value;
    state
}

fn parse(state: &Value) -> Result<StateFile, StateError> {
    StateFile::parse(&serde_json::to_vec(state).unwrap(), &Limits::default())
}

#[track_caller]
fn refused(state: &Value, named: &str) {
    let error = parse(state).unwrap_err();
    let StateError::Invalid { path, why } = &error else { panic!("{named:?}: {error}") };
    assert_eq!(*path, FileName::from(named), "{error}");
    assert!(!why.is_empty());
    assert!(error.to_string().starts_with(&format!("{path:?}: ")), "{error}");
}

#[test]
fn what_is_changed_here_was_right_before() {
    assert!(parse(&files([file("a"), file("b/c")])).is_ok());
    let most = [
        but("size", "size", 1u64 << 40),
        but("mode", "mode", 0o7777),
        but("nanos", "nanos", 999_999_999),
        but("pack", "pack", 0),
    ];
    assert!(parse(&files(most)).is_ok());
}

#[test]
fn s11_paths_that_lead_elsewhere() {
    let long = "x".repeat(256);
    let deep = "d/".repeat(2048) + "x";
    for path in [
        "",
        "/",
        "/etc/passwd",
        "..",
        "../a",
        "a/../../b",
        "a/..",
        ".",
        "./a",
        "a//b",
        "a/",
        "a\0b",
        &long,
        &deep,
        ".sandbox-state",
        ".sandbox-state.tmp",
        ".sandbox-state.next",
        ".sandbox-state.lock",
        ".sandbox-state.new/1",
    ] {
        refused(&files([file(path)]), path);
        refused(&beside(files([]), "links", json!([link(path, "t")])), path);
        refused(&beside(files([]), "directories", json!([{"path": path}])), path);
        refused(&beside(files([]), "raw", json!({"files": [file(path)]})), path);
    }
}

#[test]
fn s11_one_path_twice() {
    refused(&files([file("a"), file("b"), file("a")]), "a");
    refused(&beside(files([file("a")]), "links", json!([link("a", "t")])), "a");
    refused(&beside(files([file("a")]), "directories", json!([{"path": "a"}])), "a");
    // Also where one of them is written as bytes.
    refused(&beside(files([file("a")]), "raw", json!({"files": [file("\\x61")]})), "a");
}

#[test]
fn s11_something_beneath_what_is_no_directory() {
    refused(&files([file("a"), file("a/b")]), "a/b");
    refused(&files([file("a/b"), file("a")]), "a/b");
    refused(&beside(files([file("l/x")]), "links", json!([link("l", "/etc")])), "l/x");
    refused(&beside(files([file("a")]), "directories", json!([{"path": "a/d"}])), "a/d");
}

#[test]
fn s11_numbers_beyond_what_can_be() {
    refused(&files([but("big", "size", (1u64 << 40) + 1)]), "big");
    refused(&files([but("big", "size", u64::MAX)]), "big");
    refused(&files([but("odd", "mode", 0o10000)]), "odd");
    refused(&files([but("odd", "mode", 0o100_644)]), "odd");
    refused(&files([but("late", "nanos", 1_000_000_000)]), "late");
    let dir = json!([{"path": "d", "mode": 0o40755, "modified_at": 1}]);
    refused(&beside(files([]), "directories", dir), "d");
    let late = json!([{"path": "l", "target": "t", "modified_at": 1, "nanos": u32::MAX}]);
    refused(&beside(files([]), "links", late), "l");
}

#[test]
fn s11_bodies_that_are_nowhere() {
    refused(&files([but("f", "pack", 1)]), "f");
    refused(&files([but("f", "pack", usize::MAX)]), "f");
    let mut beyond = but("f", "pack", 0);
    beyond["offset"] = (u64::MAX - 3).into();
    refused(&files([beyond.clone()]), "f");
    // One byte less, and it ends where an object could.
    beyond["offset"] = (u64::MAX - 4).into();
    assert!(parse(&files([beyond])).is_ok());
}

/// Of a state file with one pack, and one object with bodies that lack their zeros.
#[test]
fn s11_bodies_without_their_zeros_that_cannot_be() {
    let sparse = |pack: u64, stored: u64, plain: u64, offset: u64| {
        let mut file = but("f", "pack", pack);
        (file["size"], file["stored"]) = (8192.into(), stored.into());
        (file["plain"], file["offset"]) = (plain.into(), offset.into());
        beside(files([file]), "sparse", json!([".packs/b"]))
    };
    assert!(parse(&sparse(1, 1030, 1024, 7)).is_ok());
    // In the other list, in none, larger than any encoding, with a longer beginning than all of it, beyond every object.
    for bad in [
        sparse(0, 1030, 0, 0),
        sparse(2, 1030, 0, 0),
        sparse(1, 8192 + 67, 0, 0),
        sparse(1, u64::MAX, 0, 0),
        sparse(1, 1030, 1031, 0),
        sparse(1, 1030, 0, u64::MAX - 1000),
    ] {
        refused(&bad, "f");
    }
    // Without its length it would be read as it is.
    refused(&beside(files([but("f", "pack", 1)]), "sparse", json!([".packs/b"])), "f");
    refused(&beside(files([]), "sparse", json!(["../.packs/b"])), "../.packs/b");
}

#[test]
fn s11_packs_outside() {
    for pack in ["../other/.packs/a", "/etc/passwd", ".packs/../../a", "", "a\0"] {
        // Also where no entry uses it.
        refused(&beside(files([]), "packs", json!([".packs/a", pack])), pack);
    }
}

#[test]
fn s11_targets_that_no_link_can_have() {
    let long = "t".repeat(4096);
    for target in ["", "a\0b", &long] {
        refused(&beside(files([]), "links", json!([link("l", target)])), "l");
    }
    // What leads out of the workspace is data like any other: nothing follows it.
    for target in ["/usr/bin/python3", "../../up", "nowhere"] {
        assert!(parse(&beside(files([]), "links", json!([link("l", target)]))).is_ok(), "{target}");
    }
}

#[test]
fn s11_checksums_that_are_none() {
    for checksum in ["", "098f", "zz8f6bcd4621d373cade4e832627b4f6", &MD5.repeat(2)] {
        let error = parse(&files([but("f", "checksum", checksum)])).unwrap_err();
        // No entry could be made of it, so it is named itself.
        assert!(matches!(error, StateError::Corrupt(_)), "{error}");
        assert!(error.to_string().contains(&format!("`{checksum}`")), "{error}");
    }
    assert!(parse(&files([but("f", "checksum", 7)])).is_err());
    assert!(parse(&files([but("f", "blake3", MD5)])).is_err());
    // In capitals it is the same one.
    assert!(parse(&files([but("f", "checksum", MD5.to_uppercase())])).is_ok());
}

#[test]
fn s11_what_is_not_even_of_the_right_kind() {
    let wrong = [
        but("f", "size", -1),
        but("f", "size", 1.5),
        but("f", "size", "4"),
        but("f", "mode", -1),
        but("f", "nanos", 1u64 << 33),
        but("f", "pack", -1),
        but("f", "path", 7),
        but("f", "modified_at", Value::Null),
    ];
    for entry in wrong {
        let found = parse(&files([entry.clone()]));
        assert!(matches!(found, Err(StateError::Corrupt(_))), "{entry}: {found:?}");
    }
    for text in ["", "null", "[]", "7", "{}", r#"{"version":1}"#, r#"{"version":"1.0"}"#, "\u{feff}{}"] {
        let found = StateFile::parse(text.as_bytes(), &Limits::default());
        assert!(matches!(found, Err(StateError::Corrupt(_))), "{text}: {found:?}");
    }
    // A byte that is written wrongly among those that are not text.
    for path in ["\\", "\\x", "\\x4", "\\xzz", "\\n"] {
        let found = parse(&beside(files([]), "raw", json!({"files": [file(path)]})));
        assert!(matches!(found, Err(StateError::Corrupt(_))), "{path}: {found:?}");
    }
}

#[test]
fn s11_more_entries_than_are_taken() {
    let state = beside(files([file("a"), file("b")]), "directories", json!([{"path": "c"}]));
    let json = serde_json::to_vec(&state).unwrap();
    let limits = |max_entries| Limits { max_entries, ..Limits::default() };
    assert_eq!(StateFile::parse(&json, &limits(2)), Err(StateError::TooMany { found: 3, limit: 2 }));
    assert!(StateFile::parse(&json, &limits(3)).is_ok());
}
