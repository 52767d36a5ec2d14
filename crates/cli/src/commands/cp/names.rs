//! Names of files: which ones a sandbox may give us, and how they are put together.

use anyhow::{Result, bail};
use seawall_api::files::{FileName, FileRef};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

/// The parts of a path that a sandbox gave us. A sandbox is hostile: what could lead anywhere but
/// down is refused, and no honest listing has it.
pub fn parts(path: &[u8]) -> Result<Vec<&OsStr>> {
    let refused = |why: &str| format!("the sandbox names a file `{}`, {why}: refused", path.escape_ascii());
    if path.is_empty() {
        bail!(refused("which is nothing"));
    }
    if path.contains(&0) {
        bail!(refused("with a zero byte in it"));
    }
    let mut parts = Vec::new();
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" if path[0] == b'/' => bail!(refused("an absolute path")),
            b"" | b"." => bail!(refused("with an empty part")),
            b".." => bail!(refused("which leads out of the copy")),
            part => parts.push(OsStr::from_bytes(part)),
        }
    }
    Ok(parts)
}

/// The name a copy gets inside a directory; none where the contents are meant (`dir/.`, `..`, `/`).
pub fn own_name(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|&byte| byte != b'/')? + 1;
    let name = path[..end].rsplit(|&byte| byte == b'/').next()?;
    (name != b"." && name != b"..").then_some(name)
}

pub fn join(base: &[u8], name: &[u8]) -> FileName {
    let mut joined = base.to_vec();
    if !joined.is_empty() && !joined.ends_with(b"/") {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    FileName(joined)
}

pub fn file(path: &FileName) -> FileRef {
    FileRef::new(path.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_out_is_refused() {
        for path in ["", "/etc/passwd", "..", "a/../../b", "a/..", "./a", "a//b", "a/", "a\0b", "/"] {
            assert!(parts(path.as_bytes()).is_err(), "{path:?}");
        }
    }

    #[test]
    fn what_leads_down_is_taken() {
        assert_eq!(parts(b"a/..b/c").unwrap(), ["a", "..b", "c"]);
        assert_eq!(parts(b"\xff\\").unwrap(), [OsStr::from_bytes(b"\xff\\")]);
    }

    #[test]
    fn own_names() {
        assert_eq!(own_name(b"/work/dir/"), Some(&b"dir"[..]));
        assert_eq!(own_name(b"dir"), Some(&b"dir"[..]));
        for contents in [&b"dir/."[..], b".", b"..", b"/", b""] {
            assert_eq!(own_name(contents), None);
        }
    }

    #[test]
    fn joined_with_one_slash() {
        assert_eq!(join(b"/", b"a"), FileName::from("/a"));
        assert_eq!(join(b"d", b"a"), FileName::from("d/a"));
        assert_eq!(join(b"", b"a"), FileName::from("a"));
    }
}
