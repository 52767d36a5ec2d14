//! Paths of this machine that no answer to a tenant may contain.
//!
//! Errors come from many places, some of them other people's libraries, and name the files that they are about. That is
//! right for the operator and for the log. The composition root names here once what tenants are not to see, and every way
//! out of the server asks [`redact`]. The list is the process's, since an error can leave it anywhere.

use std::{
    borrow::Cow,
    path::Path,
    sync::{PoisonError, RwLock},
};

/// Stands where a path stood.
pub const REDACTED: &str = "[server path]";

/// The longest first, so that of two that begin alike the whole one goes.
static HIDDEN: RwLock<Vec<String>> = RwLock::new(Vec::new());

/// From now on this path, and every one beneath it, is redacted; under its real name too, where it has another.
pub fn hide(path: &Path) {
    let real = path.canonicalize().ok();
    for path in [Some(path), real.as_deref()].into_iter().flatten() {
        hide_text(path.display().to_string());
    }
}

/// As [`hide`], of something that is no path of this machine, such as the address of a bucket.
pub fn hide_text(text: String) {
    let text = text.trim_end_matches('/').to_owned();
    let mut hidden = HIDDEN.write().unwrap_or_else(PoisonError::into_inner);
    if !text.is_empty() && !hidden.contains(&text) {
        hidden.push(text);
        hidden.sort_by_key(|text| std::cmp::Reverse(text.len()));
    }
}

/// The text with [`REDACTED`] in the place of every path that is hidden.
pub fn redact(text: &str) -> Cow<'_, str> {
    let hidden = HIDDEN.read().unwrap_or_else(PoisonError::into_inner);
    let mut text = Cow::Borrowed(text);
    for path in hidden.iter() {
        if text.contains(path.as_str()) {
            text = Cow::Owned(without(&text, path));
        }
    }
    text
}

fn without(text: &str, path: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(path) {
        let (before, behind) = (&rest[..at], &rest[at + path.len()..]);
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
        // The end of another path, or the beginning of a longer name.
        let previous = before.chars().next_back().or_else(|| out.chars().next_back());
        if !previous.is_some_and(is_name) && !behind.starts_with(is_name) {
            out.push_str(before);
            out.push_str(REDACTED);
            let ends = |c: char| c.is_whitespace() || "\"'`()[]{}<>,;:|".contains(c);
            let tail = behind.find(ends).unwrap_or(behind.len());
            // A full stop ends the sentence.
            let tail = if behind[..tail].ends_with('.') { tail - 1 } else { tail };
            rest = &behind[tail..];
        } else {
            out.push_str(&rest[..at + path.len()]);
            rest = behind;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_goes_with_all_that_lies_beneath_it() {
        hide(Path::new("/hidden/data"));
        hide(Path::new("/hidden/data/longer/"));
        hide(Path::new("/"));
        hide_text("s3://hidden-bucket".to_owned());
        for (text, shown) in [
            ("/hidden/data/native/boxes/x/box.json: denied", "[server path]: denied"),
            ("`/hidden/data` is full", "`[server path]` is full"),
            ("file:///hidden/data/bucket/a b", "file://[server path] b"),
            ("in (/hidden/data/longer/x), and /hidden/data.", "in ([server path]), and [server path]."),
            ("s3://hidden-bucket/docs: 403", "[server path]: 403"),
            (
                "/hidden/database and x/hidden/data and /hidden",
                "/hidden/database and x/hidden/data and /hidden",
            ),
            ("nothing of it", "nothing of it"),
            ("/hidden/data/a/hidden/data/b", "[server path]"),
        ] {
            assert_eq!(redact(text), shown, "{text}");
        }
    }
}
