//! Names for the copies that make room: `notes.conflict-1a2b3c4d.txt`.
//!
//! The digits come from what the copy holds. So a sync that died and comes again finds that it is kept already,
//! instead of keeping it once more.

use crate::{path, sums::Strong, tree::Node};
use seawall_api::files::FileName;

/// The `number`th name for a copy of `parts`, which lie at and beneath a path.
pub fn conflict_name(at: &FileName, parts: &[(FileName, Node)], number: u32) -> FileName {
    let mut mark = format!(".conflict-{:.8}", digest(at, parts).to_string());
    if number > 1 {
        mark.push_str(&format!("-{number}"));
    }
    let bytes = at.as_bytes();
    let is_dir = parts.first().is_some_and(|(_, node)| node.is_dir());
    let (stem, ending) = split(path::name(bytes), is_dir);
    // Room for the mark: a name has at most 255 bytes.
    let most = path::MAX_NAME.saturating_sub(mark.len() + ending.len());
    let stem = &stem[..cut(stem, most)];
    let name = [stem, mark.as_bytes(), ending].concat();
    FileName(path::join(path::parent(bytes).unwrap_or_default(), &name))
}

/// A name and its ending. What begins with a dot is no ending.
fn split(name: &[u8], is_dir: bool) -> (&[u8], &[u8]) {
    match name.iter().rposition(|byte| *byte == b'.') {
        Some(at) if at > 0 && !is_dir && name.len() - at <= 16 => name.split_at(at),
        _ => (name, b""),
    }
}

/// At most so many bytes, not within a character.
fn cut(text: &[u8], most: usize) -> usize {
    if text.len() <= most {
        return text.len();
    }
    (0..=most).rev().find(|at| text[*at] & 0xc0 != 0x80).unwrap_or(most)
}

fn digest(at: &FileName, parts: &[(FileName, Node)]) -> Strong {
    let mut hasher = blake3::Hasher::new();
    for (path, node) in parts {
        hasher.update(&path.as_bytes()[at.as_bytes().len()..]);
        match node {
            Node::File(file) => hasher.update(&file.sums.md5.0),
            Node::Link { target, .. } => hasher.update(target.as_bytes()),
            Node::Dir { .. } => hasher.update(b"/"),
        };
    }
    Strong(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{sums::Sums, tree::File};

    fn name_of(path: &str, body: &str) -> String {
        let file = File {
            size: body.len() as u64,
            sums: Sums::of(body.as_bytes()),
            mode: Some(0o644),
            mtime: Default::default(),
            place: None,
        };
        let path = FileName::from(path);
        conflict_name(&path, &[(path.clone(), Node::File(file))], 1).lossy().into_owned()
    }

    #[test]
    fn the_ending_stays() {
        let name = name_of("a/notes.txt", "x");
        assert!(name.starts_with("a/notes.conflict-") && name.ends_with(".txt"), "{name}");
        assert!(name_of(".env", "x").starts_with(".env.conflict-"));
        assert_eq!(name_of("a", "x"), name_of("a", "x"));
        assert_ne!(name_of("a", "x"), name_of("a", "y"));
    }

    #[test]
    fn s11_a_long_name_stays_a_name() {
        let name = name_of(&format!("{}.txt", "\u{e4}".repeat(125)), "x");
        assert!(name.len() <= 255 && name.ends_with(".txt"), "{}", name.len());
        assert!(path::check(name.as_bytes()).is_ok());
    }
}
