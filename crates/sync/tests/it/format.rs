//! Formats that never change: the state file, older and ours, and the records of the chain.
//!
//! The files in `fixtures/` are frozen: what stands there was written somewhere, and must be read for ever. What is
//! new comes as an optional field, and with a fixture of its own. `format/values.rs` says what the fixtures mean,
//! `format/bad.rs` what is refused, `format/trees.rs` makes trees of every kind.

mod bad;
mod trees;
mod values;

use proptest::prelude::*;
use seawall_sync::{
    state::{Limits, StateError, StateFile, VERSION},
    versions::Record,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use values::{OLDER, PARTIAL, SPARSE, VERSION_1, records};

fn parse(json: &[u8]) -> Result<StateFile, StateError> {
    StateFile::parse(json, &Limits::default())
}

#[test]
fn s1_what_the_older_system_wrote_is_read() {
    assert_eq!(parse(OLDER).unwrap(), values::older());
    // In a workspace too: it has no commit, so there is nothing that it could contradict.
    assert_eq!(StateFile::parse_local(OLDER, &Limits::default()).unwrap(), values::older());
}

#[test]
fn s1_version_1_is_read_and_written_as_it_is() {
    assert_eq!(parse(VERSION_1).unwrap(), values::version_1());
    let written = values::version_1().to_json();
    assert_eq!(String::from_utf8(written).unwrap(), std::str::from_utf8(VERSION_1).unwrap());
}

#[test]
fn a_partial_agreement_is_read_and_written_as_it_is() {
    assert_eq!(parse(PARTIAL).unwrap(), values::partial());
    let written = values::partial().to_json();
    assert_eq!(String::from_utf8(written).unwrap(), std::str::from_utf8(PARTIAL).unwrap());
}

#[test]
fn bodies_without_their_zeros_are_read_and_written_as_they_are() {
    assert_eq!(parse(SPARSE).unwrap(), values::sparse());
    let written = values::sparse().to_json();
    assert_eq!(String::from_utf8(written).unwrap(), std::str::from_utf8(SPARSE).unwrap());
}

/// A seawall that knows nothing of them takes the number of a body's object for one of `packs`, and refuses the whole
/// manifest where it is none: it never restores stored bytes as if they were the file, and never prunes them.
#[test]
fn s14_a_reader_that_does_not_know_them_refuses_the_version() {
    let json: Value = serde_json::from_slice(SPARSE).unwrap();
    let packs = json["packs"].as_array().unwrap().len();
    let files = json["files"].as_array().unwrap().iter().chain(json["raw"]["files"].as_array().unwrap());
    let unlisted = files.filter(|file| file["pack"].as_u64().unwrap() >= packs as u64);
    assert_eq!(unlisted.count(), 3);
    // As that reader sees it: without the fields that it passes over.
    let mut seen = json.clone();
    seen.as_object_mut().unwrap().remove("sparse");
    for list in ["/files", "/raw/files"] {
        for file in seen.pointer_mut(list).unwrap().as_array_mut().unwrap() {
            let file = file.as_object_mut().unwrap();
            file.remove("stored");
            file.remove("plain");
        }
    }
    let refused = parse(&serde_json::to_vec(&seen).unwrap()).unwrap_err();
    assert!(refused.to_string().contains("which is not listed"), "{refused}");
}

#[test]
fn s1_checksum_and_size_are_those_of_the_whole_file() {
    let read: OlderState = serde_json::from_slice(SPARSE).unwrap();
    let found: BTreeMap<String, OlderEntry> =
        read.files.into_iter().map(|file| (file.path.clone(), file)).collect();
    assert_eq!(found["disk.img"].size, 6 << 30);
    assert_eq!(found, for_older_readers(&values::sparse()));
}

#[test]
fn the_fixture_has_every_field_that_we_add() {
    let text = std::str::from_utf8(VERSION_1).unwrap();
    let fields = [
        "version",
        "last_synced_at",
        "files",
        "path",
        "checksum",
        "size",
        "modified_at",
        "nanos",
        "mode",
        "blake3",
        "pack",
        "offset",
        "links",
        "target",
        "directories",
        "raw",
        "packs",
        "commit",
        "seq",
        "id",
        "timestamp",
        "tree",
    ];
    for field in fields {
        assert!(text.contains(&format!("\"{field}\":")), "{field}");
    }
}

#[test]
fn records_are_read_and_written_as_they_are() {
    for (name, frozen, expected) in records() {
        assert_eq!(Record::parse(frozen).unwrap(), expected, "{name}");
        let written = expected.to_json();
        assert_eq!(String::from_utf8(written).unwrap(), std::str::from_utf8(frozen).unwrap(), "{name}");
    }
}

/// The same JSON with a field more in each object, as a later version may write it.
fn with_unknown_fields(json: &[u8]) -> Vec<u8> {
    fn add(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.values_mut().for_each(add);
                fields.insert("from_the_future".to_owned(), json!({"deep": [1, null, {"deeper": "yes"}]}));
            }
            Value::Array(items) => items.iter_mut().for_each(add),
            _ => {}
        }
    }
    let mut value = serde_json::from_slice(json).unwrap();
    add(&mut value);
    serde_json::to_vec(&value).unwrap()
}

#[test]
fn fields_that_nobody_knows_yet_are_passed_over() {
    let (older, newer) = (with_unknown_fields(OLDER), with_unknown_fields(VERSION_1));
    assert!(newer.windows(15).filter(|part| *part == b"from_the_future").count() > 15);
    assert_eq!(parse(&older).unwrap(), values::older());
    assert_eq!(parse(&newer).unwrap(), values::version_1());
    for (name, frozen, expected) in records() {
        assert_eq!(Record::parse(&with_unknown_fields(frozen)).unwrap(), expected, "{name}");
    }
}

/// What an older reader knows of a state file.
#[derive(Debug, Deserialize)]
struct OlderState {
    version: String,
    last_synced_at: i64,
    files: Vec<OlderEntry>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct OlderEntry {
    path: String,
    checksum: String,
    size: u64,
    modified_at: i64,
}

/// What an older reader must find: every file that it can name.
fn for_older_readers(state: &StateFile) -> BTreeMap<String, OlderEntry> {
    let mut entries = BTreeMap::new();
    for (path, file) in state.tree.files() {
        let Ok(path) = String::from_utf8(path.as_bytes().to_vec()) else { continue };
        let (checksum, modified_at) = (file.sums.md5.to_string(), file.mtime.secs);
        entries.insert(path.clone(), OlderEntry { path, checksum, size: file.size, modified_at });
    }
    entries
}

#[test]
fn s1_an_older_reader_sees_every_file_that_it_can_name() {
    let read: OlderState = serde_json::from_slice(VERSION_1).unwrap();
    assert_eq!((read.version.as_str(), read.last_synced_at), ("1.0", 1_704_067_200));
    let paths: Vec<&str> = read.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["README.md", "bin/tool", "note \"\u{e4}\" \\ 1.txt", "old/plain.txt", "zero"]);
    let found: BTreeMap<String, OlderEntry> =
        read.files.into_iter().map(|file| (file.path.clone(), file)).collect();
    assert_eq!(found, for_older_readers(&values::version_1()));
}

#[test]
fn s3_a_later_version_is_told_from_a_broken_file() {
    for (version, json) in [
        ("2.0", r#"{"version":"2.0","last_synced_at":1,"files":[]}"#),
        // Whatever else it has: a later format need not have our fields.
        ("2.0", r#"{"version":"2.0","entries":{"a":1}}"#),
        ("", r#"{"version":"","last_synced_at":1,"files":[]}"#),
    ] {
        assert_eq!(parse(json.as_bytes()), Err(StateError::UnknownVersion(version.to_owned())));
    }
    let later = String::from_utf8(VERSION_1.to_vec()).unwrap().replacen("1.0", "2.0", 1);
    assert_eq!(parse(later.as_bytes()), Err(StateError::UnknownVersion("2.0".to_owned())));
    assert_eq!(VERSION, "1.0");
}

#[test]
fn a_record_of_another_version_or_kind_is_an_error() {
    for (name, frozen, _) in records() {
        let text = std::str::from_utf8(frozen).unwrap();
        let later = text.replacen("\"1.0\"", "\"2.0\"", 1);
        let told = Record::parse(later.as_bytes()).unwrap_err();
        assert!(told.contains("2.0"), "{name}: {told}");
        // Who does not know what was decided must not go on as if nothing was.
        let unknown = text.replacen("\"kind\":\"", "\"kind\":\"un", 1);
        assert!(Record::parse(unknown.as_bytes()).is_err(), "{name}");
    }
}

#[test]
fn s3_a_file_that_was_cut_anywhere_is_an_error() {
    for whole in [OLDER, VERSION_1, PARTIAL, SPARSE] {
        assert!(parse(whole).is_ok());
        for length in 0..whole.len() {
            let cut = parse(&whole[..length]);
            assert!(matches!(cut, Err(StateError::Corrupt(_))), "at {length}: {cut:?}");
        }
    }
    for (name, frozen, _) in records() {
        for length in 0..frozen.len() {
            assert!(Record::parse(&frozen[..length]).is_err(), "{name} at {length}");
        }
    }
}

#[test]
fn s11_no_single_wrong_byte_makes_it_panic() {
    let mut text = VERSION_1.to_vec();
    for at in 0..text.len() {
        let right = text[at];
        for wrong in [0, b'"', b'\\', b'{', b'9', b'-', 0xff] {
            text[at] = wrong;
            // Read or refused: what it says is no longer known.
            let _ = parse(&text);
            let _ = StateFile::parse_local(&text, &Limits::default());
        }
        text[at] = right;
    }
    assert_eq!(text, VERSION_1);
}

#[test]
fn s3_entries_that_were_not_agreed_on_are_known() {
    let limits = Limits::default();
    // The fixture's digest was made up.
    assert_eq!(StateFile::parse_local(VERSION_1, &limits), Err(StateError::Altered));
    let mut state = values::version_1();
    let digest = state.tree.digest();
    state.commit.as_mut().unwrap().tree = digest;
    let json = state.to_json();
    assert_eq!(StateFile::parse_local(&json, &limits).unwrap(), state);
    for (what, was, is) in [
        ("a size", "\"size\":6", "\"size\":7"),
        ("a time", "\"nanos\":123456789", "\"nanos\":123456788"),
        ("a mode", "\"mode\":384", "\"mode\":420"),
        ("a name", "README.md", "README.mD"),
        ("a target", "/usr/bin/python3", "/usr/bin/python2"),
        ("a checksum", "b1946ac9", "b1946ac8"),
    ] {
        let edited = String::from_utf8(json.clone()).unwrap().replacen(was, is, 1);
        assert_ne!(edited.as_bytes(), json, "{what}");
        assert_eq!(StateFile::parse_local(edited.as_bytes(), &limits), Err(StateError::Altered), "{what}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn s1_any_tree_survives(state in trees::state()) {
        let json = state.to_json();
        let read = parse(&json).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(&read, &state);
        prop_assert_eq!(read.tree.digest(), state.tree.digest());
        prop_assert_eq!(read.to_json(), json);
    }

    #[test]
    fn s1_older_readers_see_the_files_of_any_tree(state in trees::state()) {
        let read: OlderState = serde_json::from_slice(&state.to_json()).unwrap();
        prop_assert_eq!(read.last_synced_at, state.last_synced_at);
        let found: BTreeMap<String, OlderEntry> =
            read.files.into_iter().map(|file| (file.path.clone(), file)).collect();
        prop_assert_eq!(found, for_older_readers(&state));
    }
}
