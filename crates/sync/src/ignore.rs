//! The rules of `.sandboxignore` files, in the syntax of gitignore(5), over bytes.
//!
//! Its one invariant: a rule costs at most its length times the path's, whatever its author wrote. Sets are
//! read in one pass, and no star is tried again once a later one was reached.
//!
//! [`Rules`] are one file; a [`Stack`] is all that is in force in a directory. `tests/ignore_git.rs` compares
//! with git, and says where an old git differs from its own manual.

use std::sync::Arc;

/// Longer lines are left out. A path that Linux takes is not longer.
pub const MAX_LINE_BYTES: usize = 4096;
/// Rules of one file after this many are left out.
pub const MAX_RULES: usize = 10_000;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Stands for a slash between two names in a compiled pattern: a `/` that is left there is a member of a set.
const SEPARATOR: u8 = 0;

/// What the last rule that matches says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Ignored,
    /// The rule began with `!`.
    Included,
}

/// The rules of one `.sandboxignore` file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
}

impl Rules {
    /// Never fails: as in git, a line that makes no sense matches nothing. Bounded by [`MAX_LINE_BYTES`] and
    /// [`MAX_RULES`].
    pub fn parse(text: &[u8]) -> Rules {
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        let lines = text.split(|byte| *byte == b'\n').filter(|line| line.len() <= MAX_LINE_BYTES);
        Rules { rules: lines.filter_map(Rule::parse).take(MAX_RULES).collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// `path` is relative to the directory that the file is in, without a leading slash. None where no rule
    /// speaks. The last matching rule wins.
    pub fn verdict(&self, path: &[u8], is_dir: bool) -> Option<Verdict> {
        // The directory itself has no name here that `*` could match.
        let name = path.rsplit(|byte| *byte == b'/').next().filter(|name| !name.is_empty())?;
        let rule = self.rules.iter().rev().find(|rule| rule.matches(path, name, is_dir))?;
        Some(if rule.negated { Verdict::Included } else { Verdict::Ignored })
    }
}

/// The rules in force somewhere: those of the root first, deeper files after; deeper ones win.
/// Cheap to clone, because a parallel walk hands it to each directory.
#[derive(Debug, Clone, Default)]
pub struct Stack {
    deepest: Option<Arc<Layer>>,
}

#[derive(Debug)]
struct Layer {
    dir: Box<[u8]>,
    rules: Rules,
    above: Stack,
}

impl Stack {
    /// With the rules of the file in directory `dir` (relative to the root, empty for the root itself).
    pub fn with(&self, dir: &[u8], rules: Rules) -> Stack {
        if rules.is_empty() {
            return self.clone();
        }
        Stack { deepest: Some(Arc::new(Layer { dir: dir.into(), rules, above: self.clone() })) }
    }

    /// Whether this entry is ignored by its own name. Parents are not asked again: the walker does not
    /// descend into those that are ignored.
    pub fn is_ignored(&self, path: &[u8], is_dir: bool) -> bool {
        let mut next = &self.deepest;
        while let Some(layer) = next {
            if let Some(verdict) = below(&layer.dir, path).and_then(|path| layer.rules.verdict(path, is_dir))
            {
                return verdict == Verdict::Ignored;
            }
            next = &layer.above.deepest;
        }
        false
    }
}

/// In a loop: a file in each of very many nested directories must not use up the stack of a thread.
impl Drop for Layer {
    fn drop(&mut self) {
        let mut next = self.above.deepest.take();
        while let Some(layer) = next {
            next = Arc::into_inner(layer).and_then(|mut layer| layer.above.deepest.take());
        }
    }
}

/// `path` as `dir` sees it, if it is in there.
fn below<'a>(dir: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    if dir.is_empty() { Some(path) } else { path.strip_prefix(dir)?.strip_prefix(b"/") }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    /// As written, but with [`SEPARATOR`] between names. Its sets and escapes are known to be whole.
    pattern: Box<[u8]>,
    negated: bool,
    dir_only: bool,
    /// Matches whole paths, not names at any depth.
    anchored: bool,
}

impl Rule {
    /// None for lines that match nothing.
    fn parse(line: &[u8]) -> Option<Rule> {
        if line.starts_with(b"#") {
            return None;
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // For git a line ends at a NUL.
        let line = trim(line.split(|byte| *byte == 0).next()?);
        let (negated, line) = line.strip_prefix(b"!").map_or((false, line), |rest| (true, rest));
        let (dir_only, line) = line.strip_suffix(b"/").map_or((false, line), |rest| (true, rest));
        let anchored = line.contains(&b'/');
        let pattern = compile(line.strip_prefix(b"/").unwrap_or(line))?;
        Some(Rule { pattern, negated, dir_only, anchored })
    }

    fn matches(&self, path: &[u8], name: &[u8], is_dir: bool) -> bool {
        if self.dir_only && !is_dir {
            return false;
        }
        if self.anchored { path_matches(&self.pattern, path) } else { name_matches(&self.pattern, name) }
    }
}

/// Without the spaces at the end that no backslash protects.
fn trim(line: &[u8]) -> &[u8] {
    let (mut at, mut end) = (0, 0);
    while let Some(byte) = line.get(at) {
        at += if *byte == b'\\' { 2 } else { 1 };
        if *byte != b' ' {
            end = at;
        }
    }
    line.get(..end).unwrap_or(line)
}

/// None where a set or an escape has no end, or there is nothing.
fn compile(line: &[u8]) -> Option<Box<[u8]>> {
    let mut pattern = Vec::with_capacity(line.len());
    let (mut rest, mut name_from) = (line, 0);
    while let Some(first) = rest.first() {
        let length = if *first == b'[' { 1 + set(&rest[1..], 0)?.1 } else { literal(rest)?.1 };
        let (token, after) = rest.split_at(length);
        rest = after;
        if !token.ends_with(b"/") {
            pattern.extend_from_slice(token);
            continue;
        }
        // `**\/` is at least one directory in git, unlike `**/`.
        if token.len() == 2 && is_deep(&pattern[name_from..]) {
            pattern.extend_from_slice(&[SEPARATOR, b'*']);
        }
        pattern.push(SEPARATOR);
        name_from = pattern.len();
    }
    (!pattern.is_empty()).then(|| pattern.into())
}

/// `**` as a whole name: any number of directories.
fn is_deep(name: &[u8]) -> bool {
    name.len() > 1 && name.iter().all(|byte| *byte == b'*')
}

/// The byte that a pattern begins with, and the length of how it is written there.
fn literal(pattern: &[u8]) -> Option<(u8, usize)> {
    match pattern {
        [] | [b'\\'] => None,
        [b'\\', byte, ..] => Some((*byte, 2)),
        [byte, ..] => Some((*byte, 1)),
    }
}

/// Name by name. After a mismatch the last `**` takes one name more; earlier ones need not be tried again.
fn path_matches(pattern: &[u8], path: &[u8]) -> bool {
    let mut wanted = pattern.split(|byte| *byte == SEPARATOR);
    let mut names = path.split(|byte| *byte == b'/');
    let mut retry = None;
    loop {
        let matched = match wanted.next() {
            Some(name) if is_deep(name) => {
                if wanted.clone().next().is_none() {
                    // `a/**` is all in `a`, not `a` itself.
                    return names.next().is_some();
                }
                retry = Some((wanted.clone(), names.clone()));
                true
            }
            Some(wanted) => match names.next() {
                Some(name) => name_matches(wanted, name),
                // A `**` that takes more leaves even fewer.
                None => return false,
            },
            None if names.next().is_none() => return true,
            None => false,
        };
        if !matched {
            let Some((after, from)) = &mut retry else { return false };
            from.next();
            (wanted, names) = (after.clone(), from.clone());
        }
    }
}

/// Byte by byte, in the same way.
fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut pattern, mut name) = (pattern, name);
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', after @ ..] = pattern {
            if after.is_empty() {
                return true;
            }
            retry = Some((after, name));
            pattern = after;
            continue;
        }
        let Some((byte, rest)) = name.split_first() else { return pattern.is_empty() };
        if let Some(after) = step(pattern, *byte) {
            (pattern, name) = (after, rest);
            continue;
        }
        let Some((after, [_, from @ ..])) = retry else { return false };
        retry = Some((after, from));
        (pattern, name) = (after, from);
    }
}

/// What is left of the pattern after `byte`, if that matches.
fn step(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (matched, length) = match pattern {
        [b'?', ..] => (true, 1),
        [b'[', members @ ..] => set(members, byte).map(|(matched, length)| (matched, 1 + length))?,
        _ => literal(pattern).map(|(wanted, length)| (wanted == byte, length))?,
    };
    if matched { pattern.get(length..) } else { None }
}

/// Whether `byte` is in the set whose `[` came before, and the length up to and with its `]`. None where it
/// has no end or names a class that is none.
fn set(pattern: &[u8], byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(pattern, [b'!' | b'^', ..]);
    let first = usize::from(negated);
    let (mut at, mut found, mut low, mut no_class_before) = (first, false, None, 0);
    loop {
        let rest = pattern.get(at..)?;
        if at > first && rest.starts_with(b"]") {
            return Some((found != negated, at + 1));
        }
        if let [b'[', b':', name @ ..] = rest
            && at >= no_class_before
        {
            let end = name.iter().position(|byte| *byte == b']')?;
            if let Some(name) = name[..end].strip_suffix(b":") {
                found |= in_class(name, byte)?;
                (at, low) = (at + end + 3, None);
                continue;
            }
            // Each `[:` up to here would find the same end: looked for once, this takes one pass.
            no_class_before = at + end;
        }
        let from = low.take().filter(|_| matches!(rest, [b'-', to, ..] if *to != b']'));
        if let Some(from) = from {
            let (to, length) = literal(&rest[1..])?;
            found |= (from..=to).contains(&byte);
            at += 1 + length;
        } else {
            let (member, length) = literal(rest)?;
            found |= member == byte;
            (at, low) = (at + length, Some(member));
        }
    }
}

/// Classes are of ASCII, and as git has them: `space` is without form feed and vertical tab.
fn in_class(name: &[u8], byte: u8) -> Option<bool> {
    Some(match name {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => matches!(byte, b' '..=b'~'),
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => matches!(byte, b' ' | b'\t' | b'\n' | b'\r'),
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn ignored(rules: &str, path: &str) -> bool {
        let (path, is_dir) = path.strip_suffix('/').map_or((path, false), |dir| (dir, true));
        Stack::default().with(b"", Rules::parse(rules.as_bytes())).is_ignored(path.as_bytes(), is_dir)
    }

    /// `yes` and `no` are paths with spaces between; directories end in a slash.
    fn check(rules: &str, yes: &str, no: &str) {
        for path in yes.split(' ').filter(|path| !path.is_empty()) {
            assert!(ignored(rules, path), "{rules:?} ignores {path:?}");
        }
        for path in no.split(' ').filter(|path| !path.is_empty()) {
            assert!(!ignored(rules, path), "{rules:?} does not ignore {path:?}");
        }
    }

    #[test]
    fn a_slash_anchors_and_none_means_any_depth() {
        check("a", "a a/ x/a x/y/a", "b ab");
        check("/a", "a a/", "x/a");
        check("a/b", "a/b", "x/a/b b");
        check("a/", "a/ x/a/", "a x/a");
    }

    #[test]
    fn stars_and_marks_stay_within_a_name() {
        check("/*.o", "x.o .o", "x/y.o x.oo");
        check("a/*/c", "a/b/c", "a/c a/b/b/c");
        check("a?c/*", "abc/x", "a/c/x ac/x abc/x/y");
        check("*a*b*", "ab xaxbx b/ab", "ba axa");
    }

    #[test]
    fn two_stars_are_directories_only_as_a_whole_name() {
        check("**/a", "a x/a x/y/a", "xa x/ya");
        check("a/**", "a/x a/x/y", "a a/");
        check("a/**/b", "a/b a/x/b a/x/y/b", "ab a/x a/xb");
        check("a/**/b/**/c", "a/b/c a/b/x/b/c a/x/b/y/z/c", "a/c a/x/c b/c");
        // git before 2.52 takes these for directories too, against its manual.
        check("/a**/b", "a/b ax/b", "ab ax/y/b a/y/b");
        check("/a/b**c", "a/bxc a/bc", "a/b/c");
    }

    #[test]
    fn sets_have_ranges_negation_classes_and_escapes() {
        check("[a-c]", "a b c", "d -");
        check("[!a-c]", "d -", "a b c");
        check("[^a]", "b ^", "a");
        check("[]a-]", "] a -", "b");
        check("[[:digit:]x]", "1 x", "a : d");
        check("[\\]\\-]", "] -", "\\ a");
        check("[[:]x", "[x :x", "x ]x");
        // The slash in a set never matches, but it anchors.
        check("x[a/b]y", "xay xby", "x/y d/xay");
    }

    #[test]
    fn escapes_comments_and_spaces_are_as_in_git() {
        check("#a\n\n\\#b\n\\!c", "#b !c", "#a a c");
        check("\\*", "*", "a");
        assert!(ignored("a  ", "a") && !ignored("a  ", "a  "));
        assert_eq!(Rules::parse(b"a\\ ").verdict(b"a ", false), Some(Verdict::Ignored));
        assert_eq!(Rules::parse(b"a\\ ").verdict(b"a", false), None);
        check("\u{feff}a\r\nb \r\nc\r", "a b c", "");
        assert!(ignored("a\r\r\n", "a\r"));
    }

    #[test]
    fn senseless_lines_match_nothing() {
        for line in
            ["", "!", "/", "//", "!/", "a//", "//a", "a\\", "[", "[a", "[]", "[[:x:]]", "[[:alpha:", "\0a"]
        {
            check(line, "", "a a/ [ [a x/a \\");
        }
        assert!(Rules::parse(b"# a\n\n[\r\n").is_empty());
        assert_eq!(Rules::parse(b"*\n!*").verdict(b"", true), None);
    }

    #[test]
    fn the_last_rule_wins_and_deeper_files_do() {
        check("*.o\n!a.o", "b.o x/b.o", "a.o x/a.o");
        check("!a\na", "a", "");
        let root = Stack::default().with(b"", Rules::parse(b"*.o\n/keep"));
        let deep = root.with(b"x/y", Rules::parse(b"!a.o\n/z\nkeep"));
        assert!(!deep.is_ignored(b"x/y/a.o", false) && !deep.is_ignored(b"x/y/s/a.o", false));
        assert!(deep.is_ignored(b"x/y/b.o", false) && deep.is_ignored(b"x/a.o", false));
        assert!(deep.is_ignored(b"x/y/z", false) && !deep.is_ignored(b"x/y/s/z", false));
        assert!(deep.is_ignored(b"x/y/keep", false) && !deep.is_ignored(b"x/yy/keep", false));
        assert!(root.is_ignored(b"x/y/a.o", false), "the stack above is as it was");
    }

    #[test]
    fn names_are_bytes() {
        let rules = Rules::parse(b"[\x80-\xff]?\n\xc3");
        assert_eq!(rules.verdict(b"\xfe\xff", false), Some(Verdict::Ignored));
        assert_eq!(rules.verdict(b"\xc3", false), Some(Verdict::Ignored));
        assert_eq!(rules.verdict(b"\x7f\xff", false), None);
    }

    #[test]
    fn too_long_and_too_many_are_left_out() {
        let line = |length| vec![b'a'; length];
        assert!(!Rules::parse(&line(MAX_LINE_BYTES)).is_empty());
        assert!(Rules::parse(&line(MAX_LINE_BYTES + 1)).is_empty());
        let rules = Rules::parse(&[b"a\n".repeat(MAX_RULES), b"b\n".to_vec()].concat());
        assert_eq!(rules.verdict(b"a", false), Some(Verdict::Ignored));
        assert_eq!(rules.verdict(b"b", false), None);
    }

    #[test]
    fn hostile_patterns_take_no_longer_than_their_length_times_the_path() {
        let start = Instant::now();
        let name = "a".repeat(4000);
        let path = "a/".repeat(2000) + "a";
        for pattern in ["*a".repeat(1000), "*".repeat(4000), format!("*{}", "a".repeat(2000))] {
            assert!(!ignored(&(pattern + "b"), &name));
        }
        for pattern in ["**/a/".repeat(800), "**/*a*/".repeat(500), format!("**/{}", "a/".repeat(1000))] {
            assert!(!ignored(&(pattern + "b"), &path));
        }
        assert!(!ignored(&format!("*[{}]", "[:".repeat(2000)), &"a".repeat(255)));
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }

    #[test]
    fn a_very_deep_stack_goes_without_recursion() {
        let rules = Rules::parse(b"a");
        let stack = (0..200_000).fold(Stack::default(), |stack, _| stack.with(b"x", rules.clone()));
        assert!(!stack.is_ignored(b"b", false));
        drop(stack);
    }
}
