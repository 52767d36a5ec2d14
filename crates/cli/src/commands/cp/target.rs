//! Where a copy lands on this side.

use super::{names, tree::Tree};
use anyhow::{Context, Result, bail};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::Path,
};

/// A single file or link: the directory it goes into, and its name there.
pub fn for_file(target: &Path, source: &[u8]) -> Result<(Tree, OsString)> {
    match std::fs::metadata(target) {
        Ok(meta) if meta.is_dir() => {
            let name = names::own_name(source).context("the source is no file with a name of its own")?;
            Ok((Tree::open(target)?, OsStr::from_bytes(name).to_owned()))
        }
        Ok(meta) if !meta.is_file() => {
            bail!("{} is no regular file: write to `-` and redirect it", target.display())
        }
        // A link under this name may come from an earlier copy: it is replaced, not written through.
        Ok(_) => split(target),
        Err(_) if target.as_os_str().as_bytes().ends_with(b"/") => {
            bail!("there is no directory {}: make it first", target.display())
        }
        Err(_) => split(target),
    }
}

fn split(path: &Path) -> Result<(Tree, OsString)> {
    let name = path.file_name().with_context(|| format!("{} names no file", path.display()))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((Tree::open(parent)?, name.to_owned()))
}

/// A directory: made where it is missing, and entered.
pub fn for_dir(target: &Path, source: &[u8]) -> Result<Tree> {
    match std::fs::metadata(target) {
        Ok(meta) if meta.is_dir() => {
            let tree = Tree::open(target)?;
            let Some(name) = names::own_name(source) else { return Ok(tree) };
            // A former copy may have left a link under this name: not followed.
            let name = [OsStr::from_bytes(name)];
            tree.make_dir(&name)?;
            tree.enter(&name)
        }
        Ok(_) => bail!("{} is no directory, and the source is one", target.display()),
        Err(_) => {
            std::fs::create_dir(target).with_context(|| format!("cannot make {}", target.display()))?;
            Tree::open(target)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_cp_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        std::fs::write(here.join("old"), "").unwrap();
        assert_eq!(for_file(here, b"/work/a").unwrap().1, "a");
        assert_eq!(for_file(&here.join("old"), b"/work/a").unwrap().1, "old");
        assert_eq!(for_file(&here.join("new"), b"/work/a").unwrap().1, "new");
        assert!(for_file(&here.join("missing/"), b"/work/a").is_err());
        assert!(for_file(Path::new("/dev/null"), b"/work/a").is_err());

        for_dir(here, b"/work/dir").unwrap();
        assert!(here.join("dir").is_dir());
        for_dir(&here.join("fresh"), b"/work/dir").unwrap();
        assert!(here.join("fresh").is_dir() && !here.join("fresh/dir").exists());
        for_dir(&here.join("fresh"), b"/work/dir/.").unwrap();
        assert!(!here.join("fresh/dir").exists());
        assert!(for_dir(&here.join("old"), b"/work/dir").is_err());
    }
}
