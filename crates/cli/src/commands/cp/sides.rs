//! What a side of a copy names: a file here, stdin or stdout, or a file in a sandbox.

use seawall_api::files::FileName;
use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::PathBuf};

#[derive(Debug, PartialEq, Eq)]
pub enum Side {
    Local(PathBuf),
    Stream,
    Box { sandbox: String, path: FileName },
}

impl Side {
    /// `ID:PATH` is in a sandbox, unless a slash or a leading dot says that it is a path.
    pub fn parse(text: &OsStr) -> Side {
        let bytes = text.as_bytes();
        if bytes == b"-" {
            return Side::Stream;
        }
        let local = || Side::Local(PathBuf::from(text));
        let Some(colon) = bytes.iter().position(|&byte| byte == b':') else { return local() };
        let (sandbox, path) = (&bytes[..colon], &bytes[colon + 1..]);
        if sandbox.is_empty() || sandbox.contains(&b'/') || sandbox.starts_with(b".") {
            return local();
        }
        let Ok(sandbox) = std::str::from_utf8(sandbox) else { return local() };
        let path = if path.is_empty() { &b"."[..] } else { path };
        Side::Box { sandbox: sandbox.to_owned(), path: FileName::from(path) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(text: &str) -> Side {
        Side::parse(OsStr::new(text))
    }

    fn in_box(sandbox: &str, path: &str) -> Side {
        Side::Box { sandbox: sandbox.into(), path: path.into() }
    }

    #[test]
    fn a_colon_makes_a_sandbox_unless_it_is_a_path() {
        assert_eq!(side("demo:/work/a:b"), in_box("demo", "/work/a:b"));
        assert_eq!(side("demo:"), in_box("demo", "."));
        assert_eq!(side("-"), Side::Stream);
        for local in ["plain", "./a:b", "/a:b", "dir/a:b", ":b", "..:x"] {
            assert_eq!(side(local), Side::Local(local.into()));
        }
    }
}
