//! Paths in a workspace: relative, without tricks. What passes [`check`] names something beneath the root.

use seawall_api::files::FileName;

/// The longest path and the longest name that Linux takes.
pub const MAX_PATH: usize = 4095;
pub const MAX_NAME: usize = 255;

/// The state file in a workspace's root and in each version's folder.
pub const STATE: &str = ".sandbox-state";
/// What the state file is written to before it is renamed.
pub const STATE_TEMPORARY: &str = ".sandbox-state.tmp";
/// What will be agreed on if a commit that is under way succeeds.
pub const STATE_NEXT: &str = ".sandbox-state.next";
/// Files that the state file tells of may not be on the disk yet.
pub const STATE_FRESH: &str = ".sandbox-state.fresh";
/// Records of directories that have a temporary mode while they are filled.
pub const STATE_MODES: &str = ".sandbox-state.modes";
/// Who holds it syncs.
pub const STATE_LOCK: &str = ".sandbox-state.lock";
/// Where bodies wait until they are whole.
pub const STAGING: &str = ".sandbox-state.new";
/// Rules of what is left out.
pub const IGNORE_FILE: &str = ".sandboxignore";

/// Why a path cannot be one of a workspace.
pub fn check(path: &[u8]) -> Result<(), &'static str> {
    if path.is_empty() {
        return Err("it is empty");
    }
    if path.len() > MAX_PATH {
        return Err("it is longer than 4095 bytes");
    }
    if path.contains(&0) {
        return Err("it contains a zero byte");
    }
    if path[0] == b'/' {
        return Err("it is absolute");
    }
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" => return Err("it has an empty part"),
            b"." => return Err("it has a part `.`"),
            b".." => return Err("it has a part `..`"),
            part if part.len() > MAX_NAME => return Err("one of its names is longer than 255 bytes"),
            _ => {}
        }
    }
    match is_own(path) {
        true => Err("that name belongs to the sync itself"),
        false => Ok(()),
    }
}

/// Files of the sync itself, in the root of the workspace. They are never listed nor synced.
pub fn is_own(path: &[u8]) -> bool {
    let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
    [STATE, STATE_TEMPORARY, STATE_NEXT, STATE_FRESH, STATE_MODES, STATE_LOCK, STAGING]
        .iter()
        .any(|own| own.as_bytes() == first)
}

/// The path of the directory that it is in; none in the root.
pub fn parent(path: &[u8]) -> Option<&[u8]> {
    path.iter().rposition(|byte| *byte == b'/').map(|at| &path[..at])
}

/// Every directory above, the nearest first.
pub fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(parent(path), |above| parent(above))
}

pub fn name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir.is_empty() {
        true => name.to_vec(),
        false => [dir, b"/", name].concat(),
    }
}

/// The bounds between which everything beneath a directory is sorted.
pub fn beneath(dir: &FileName) -> (FileName, FileName) {
    // The byte after the slash: nothing beneath the directory sorts behind it.
    let bound = |end: u8| FileName([dir.as_bytes(), &[end]].concat());
    (bound(b'/'), bound(b'/' + 1))
}

/// The path with its beginning `from` replaced by `to`.
pub fn rebase(path: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    [to, path.get(from.len()..).unwrap_or_default()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s11_paths_that_lead_elsewhere_are_refused() {
        let long = "x".repeat(256);
        let longer = "x/".repeat(2048);
        for bad in [
            "",
            "/etc/passwd",
            "../a",
            "a/../b",
            "a//b",
            "a/",
            "./a",
            "a\0b",
            ".sandbox-state",
            &long,
            &longer,
        ] {
            assert!(check(bad.as_bytes()).is_err(), "{bad:?}");
        }
        let name = "y".repeat(255);
        for good in ["a", "a/b c", "..a", "a/..b", "sub/.sandbox-state", "\u{e4}", &name] {
            assert!(check(good.as_bytes()).is_ok(), "{good:?}");
        }
        assert!(check(b"\xff\xfe").is_ok());
    }

    #[test]
    fn s2_files_of_the_sync_are_its_own() {
        for own in [".sandbox-state", ".sandbox-state.tmp", ".sandbox-state.lock", ".sandbox-state.new/7"] {
            assert!(is_own(own.as_bytes()), "{own}");
        }
        for users in ["a/.sandbox-state", ".sandbox-state2", ".sandbox-state.md"] {
            assert!(!is_own(users.as_bytes()), "{users}");
        }
    }

    #[test]
    fn ancestors_from_the_nearest_up() {
        assert_eq!(ancestors(b"a/b/c").collect::<Vec<_>>(), [&b"a/b"[..], b"a"]);
        assert_eq!(ancestors(b"a").count(), 0);
    }
}
