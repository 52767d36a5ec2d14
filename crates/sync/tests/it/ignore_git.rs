//! The rules against `git check-ignore`: a table of tricky pairs, and thousands that nobody thought of.
//!
//! Each case has a directory of its own in one repository, so that one call of git answers all of them.
//!
//! Where git differs from its manual, the manual holds: before 2.52 git read `/a**/b` as `/a` and `**/b`.
//! Such lines are not asked ([`is_misread`]).

use seawall_sync::ignore::{Rules, Stack};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::OsStr,
    fs::{self, File},
    io::Write,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

type Bytes = Vec<u8>;

/// Patterns, then paths that are asked. A path that ends in a slash is a directory.
const TABLE: &[(&[u8], &[&[u8]])] = &[
    (b"a", &[b"a", b"x/a", b"x/y/a/", b"ab", b"A"]),
    (b"/a", &[b"a", b"x/a"]),
    (b"a/b", &[b"a/b", b"x/a/b"]),
    (b"a/", &[b"a/", b"x/a/", b"y/a", b"a/b"]),
    (b"/a/", &[b"a/", b"x/a/"]),
    (b"a//", &[b"a/", b"a/b"]),
    (b"//a", &[b"a"]),
    (b"/\n//\n!\n!/\n///", &[b"a", b"b/"]),
    (b"*\n!a", &[b"a", b"b", b"x/a"]),
    (b"/*\n!/a\n/a/*\n!/a/b", &[b"a/b", b"a/c", b"d/b"]),
    (b"a\n!a/b", &[b"a/b", b"a/"]),
    (b"!!a\n!b", &[b"!a", b"a", b"b"]),
    (b"\\!a\n!#b\n#c\n\\#d\n #e", &[b"!a", b"#b", b"#c", b"#d", b"c", b" #e"]),
    (
        b"a \nb\\ \nc\\  \nd \\ \n e\nf\\\\ ",
        &[b"a", b"a ", b"b ", b"c ", b"c  ", b"d  ", b" e", b"f\\", b"f\\ "],
    ),
    (b"a\t\nb \t", &[b"a", b"a\t", b"b", b"b \t"]),
    (b"a\r\nb\r\r\nc \r\n\r\nd\r", &[b"a", b"a\r", b"b", b"b\r", b"c", b"c ", b"d", b"d\r", b"\r"]),
    (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", &[b"a", b"b", b"\xef\xbb\xbfa", b"\xef\xbb\xbfb"]),
    (b"a\0b\n\0c", &[b"a", b"c"]),
    (b"a\\\nb\\/\nc\\\\", &[b"a", b"a\\", b"b/", b"b\\/", b"c\\", b"c"]),
    (b"\\a\\*\\?\\[", &[b"a*?[", b"aaaa"]),
    (b"**", &[b"a", b"a/b"]),
    (b"**/", &[b"a", b"b/", b"c/d"]),
    (b"/**", &[b"a", b"a/b"]),
    (b"**/a", &[b"a", b"x/a", b"x/y/a", b"xa"]),
    (b"**/a/**", &[b"a/", b"x/a/", b"x/a/b", b"a/b/c"]),
    (b"a/**", &[b"a/", b"a/b", b"a/b/c"]),
    (b"a/**/", &[b"a/", b"a/b", b"a/c/", b"a/c/d"]),
    (b"a/**/b", &[b"a/b", b"a/x/b", b"a/x/y/b", b"a/xb", b"ab"]),
    (b"a/***/b", &[b"a/b", b"a/x/b", b"a/x/y/b"]),
    (b"a/**/**/b", &[b"a/b", b"a/x/b", b"a/x/y/b"]),
    (b"a/**\\/b\n\\/c\nd\\/e", &[b"a/b", b"a/x/b", b"a/x/y/b", b"c", b"d/e"]),
    (b"**\\/b", &[b"b", b"a/b", b"x/y/b"]),
    (b"a\\/**", &[b"a/", b"a/b", b"a/b/c"]),
    (b"a/**b", &[b"a/b", b"a/xb", b"a/x/b"]),
    (b"?a**/b", &[b"xa/b", b"xay/b", b"xa/y/b", b"xab"]),
    (b"a**b", &[b"ab", b"axb", b"a/b"]),
    (b"*/b", &[b"a/b", b"b", b"x/y/b"]),
    (b"a/*\n!a/*/", &[b"a/b", b"a/c/", b"a/c/d"]),
    (b"a?b/c", &[b"axb/c", b"a/b/c"]),
    (b"[a-c]x\n[!a]y\n[^a]z", &[b"ax", b"dx", b"ay", b"by", b"az", b"^z", b"!y"]),
    (b"[]a]x\n[!]a]y\n[]-_]z", &[b"]x", b"ax", b"]y", b"by", b"^z", b"]z", b"-z"]),
    (b"[a-]x\n[-a]y\n[--/]z", &[b"-x", b"ax", b"-y", b".z", b"-z"]),
    (b"[c-a]x\n[a-c-e]y", &[b"bx", b"cx", b"dy", b"-y", b"ey"]),
    (b"[\\]]x\n[\\a-\\c]y\n[a\\]z", &[b"]x", b"\\x", b"by", b"az", b"\\z"]),
    (b"[a/b]x\n[!a/]y\n/[+-9]z", &[b"ax", b"d/ax", b"by", b"d/by", b"-z", b"x/z"]),
    (b"[\na\n[]\n[!]\n[a\n[a/", &[b"[", b"a", b"[]", b"[a", b"b"]),
    (b"[[:alpha:]]x\n[![:alpha:]]y\n[[:digit:]a-c]z", &[b"ax", b"1x", b"ay", b"1y", b"bz", b"9z", b":z"]),
    (b"[[:x:]]\n[[::]]\n[[:alpha:]\n[[:ALPHA:]]", &[b"x", b":", b"a", b"A", b"[", b"x]"]),
    (b"[[:]x\n[[:a]y\n[[:a\\]]z", &[b"[x", b":x", b"ay", b"[y", b"]z", b"az"]),
    (b"[a-[:alpha:]]", &[b"a", b"a]", b"l]", b"-]"]),
    (b"[[:alpha:]-z]", &[b"-", b"z", b"b", b"{"]),
    (b"\xff*\n[\x80-\x90]", &[b"\xffa", b"\x85", b"\x91", b"\xfe"]),
    (b"*a*b*c", &[b"abc", b"xaxbxc", b"aabbcc", b"acb", b"a/b/c"]),
    (b"{a,b}", &[b"a", b"{a,b}"]),
];

const CLASSES: [&str; 12] = [
    "alnum", "alpha", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper",
    "xdigit",
];

/// The pieces of which lines are made at random, the sensible ones first.
const PIECES: &[&[u8]] = &[
    b"a",
    b"b",
    b"c",
    b"a",
    b"b",
    b"ab",
    b"*",
    b"*",
    b"**",
    b"***",
    b"?",
    b"/",
    b"/",
    b"/",
    b"/**/",
    b"**/",
    b"/**",
    b"[ab]",
    b"[!a]",
    b"[^b]",
    b"[a-b]",
    b"[]a]",
    b"[a-]",
    b"[-a]",
    b"[[:alpha:]]",
    b"[[:x:]]",
    b"[[:]",
    b"[a/b]",
    b"[\\]a]",
    b"[b-a]",
    b"[",
    b"]",
    b"-",
    b":",
    b"\\a",
    b"\\*",
    b"\\",
    b"\\/",
    b"\\[",
    b"!",
    b"#",
    b" ",
    b"\\ ",
    b"\r",
    b"\xff",
    b"[\x80-\xff]",
];

const SENSIBLE: usize = 22;

const NAMES: &[&[u8]] = &[
    b"a", b"b", b"c", b"a", b"b", b"c", b"ab", b"ba", b"abc", b"aab", b"abab", b"*", b"a*", b"[a", b"a]",
    b"\\a", b"a ", b" ", b"!a", b"#a", b"-", b"a-", b"\xff", b"a\xff", b"a\r", b"A",
];

/// One directory of the repository: its ignore files by their directories, and what is asked in there.
#[derive(Default)]
struct Case {
    files: BTreeMap<Bytes, Bytes>,
    /// What git finds to be a directory when it looks. It takes parents for such, and all else for files.
    dirs: BTreeSet<Bytes>,
    paths: BTreeSet<Bytes>,
}

impl Case {
    fn new(rules: &[u8], paths: &[&[u8]]) -> Case {
        let mut case = Case { files: BTreeMap::from([(Bytes::new(), rules.to_vec())]), ..Case::default() };
        paths.iter().for_each(|path| case.ask(path));
        case
    }

    fn ask(&mut self, path: &[u8]) {
        let dir = path.strip_suffix(b"/");
        if dir.is_some() {
            self.dirs.extend(parents(path).map(<[u8]>::to_vec));
        }
        self.paths.insert(dir.unwrap_or(path).to_vec());
    }

    /// As the walker does it: from the top down, not into what is ignored, with each file from where it lies.
    fn is_ignored(&self, path: &[u8]) -> bool {
        let mut stack = self.enter(&Stack::default(), b"");
        for dir in parents(path) {
            if stack.is_ignored(dir, true) {
                return true;
            }
            stack = self.enter(&stack, dir);
        }
        stack.is_ignored(path, self.dirs.contains(path))
    }

    fn enter(&self, stack: &Stack, dir: &[u8]) -> Stack {
        self.files.get(dir).map_or_else(|| stack.clone(), |text| stack.with(dir, Rules::parse(text)))
    }

    fn write(&self, home: &Path) {
        fs::create_dir_all(home).unwrap();
        for dir in self.dirs.iter().chain(self.files.keys()) {
            fs::create_dir_all(home.join(OsStr::from_bytes(dir))).unwrap();
        }
        for (dir, text) in &self.files {
            fs::write(home.join(OsStr::from_bytes(dir)).join(".gitignore"), text).unwrap();
        }
    }
}

/// What is before each slash, from the top down.
fn parents(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at])
}

/// A repository with nothing of this machine's configuration.
struct Repository(tempfile::TempDir);

impl Repository {
    /// None, and a word about it, where there is no git.
    fn or_skip() -> Option<Repository> {
        let repository = Repository(tempfile::tempdir().unwrap());
        match repository.git(&["init", "-q", "--template="]).status() {
            Ok(status) => assert!(status.success(), "git init: {status}"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let _ = writeln!(std::io::stdout(), "skipped ignore_git: there is no git");
                return None;
            }
            Err(error) => panic!("git: {error}"),
        }
        Some(repository)
    }

    fn tree(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    fn git(&self, arguments: &[&str]) -> Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut git = Command::new("git");
        git.args(arguments).current_dir(self.tree()).env_clear().env("PATH", path).env("HOME", self.tree());
        git.env("GIT_CONFIG_NOSYSTEM", "1").env("LC_ALL", "C");
        git
    }

    /// Those of the paths that git ignores.
    fn ignored(&self, paths: &[Bytes]) -> HashSet<Bytes> {
        // From a file: a pipe would fill up while git waits for its reader.
        let list = self.tree().join(".git/asked");
        fs::write(&list, paths.join(&0)).unwrap();
        let mut git = self.git(&["check-ignore", "--no-index", "--stdin", "-z"]);
        let output = git.stdin(File::open(&list).unwrap()).stderr(Stdio::inherit()).output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 1)), "git check-ignore: {}", output.status);
        output.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
    }
}

/// Asks git about all cases at once. Returns how many paths were ignored, and how many not.
fn compare(repository: &Repository, cases: &[Case]) -> (usize, usize) {
    let home = |number: usize| format!("case{number}");
    let mut asked = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        case.write(&repository.tree().join(home(number)));
        asked.extend(case.paths.iter().map(|path| (number, path)));
    }
    let full = |number, path: &[u8]| [home(number).as_bytes(), b"/", path].concat();
    let paths: Vec<Bytes> = asked.iter().map(|(number, path)| full(*number, path)).collect();
    let by_git = repository.ignored(&paths);
    let (mut yes, mut wrong) = (0, Vec::new());
    for ((number, path), full) in asked.iter().zip(&paths) {
        let (case, expected) = (&cases[*number], by_git.contains(full));
        yes += usize::from(expected);
        if case.is_ignored(path) != expected {
            let files: Vec<_> =
                case.files.iter().map(|(dir, text)| (dir.escape_ascii(), text.escape_ascii())).collect();
            wrong.push(format!("{files:?}: git says {expected} of {}", path.escape_ascii()));
        }
    }
    wrong.truncate(20);
    assert!(wrong.is_empty(), "{wrong:#?}");
    (yes, asked.len() - yes)
}

/// Numbers that look random and are the same each time: xorshift.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end
    }

    fn one_of<'a>(&mut self, all: &[&'a [u8]]) -> &'a [u8] {
        all[self.below(all.len())]
    }

    fn line(&mut self) -> Bytes {
        loop {
            let mut line = if self.below(5) == 0 { b"!".to_vec() } else { Bytes::new() };
            let pieces = if self.below(2) == 0 { PIECES } else { &PIECES[..SENSIBLE] };
            (0..=self.below(6)).for_each(|_| line.extend_from_slice(self.one_of(pieces)));
            if !is_misread(&line) {
                return line;
            }
        }
    }

    fn text(&mut self) -> Bytes {
        let mut text = if self.below(20) == 0 { b"\xef\xbb\xbf".to_vec() } else { Bytes::new() };
        for _ in 0..=self.below(4) {
            text.extend(self.line());
            text.extend_from_slice(self.one_of(&[b"\n", b"\n", b"\n", b"\r\n"]));
        }
        // The last line may also end with the file.
        text.truncate(text.len() - self.below(2));
        text
    }

    fn path(&mut self) -> Bytes {
        let names: Vec<&[u8]> = (0..=self.below(4)).map(|_| self.one_of(NAMES)).collect();
        names.join(&b'/')
    }

    fn case(&mut self) -> Case {
        let mut case = Case::new(&self.text(), &[]);
        for _ in 0..12 {
            case.ask(&self.path());
        }
        // Making directories takes long: few are there, and the others are asked about as parents.
        if self.below(3) == 0 {
            let dir = self.path();
            case.ask(&[&dir, b"/".as_slice()].concat());
            (0..4).for_each(|_| case.ask(&[dir.as_slice(), self.one_of(NAMES)].join(&b'/')));
            case.files.insert(dir, self.text());
        }
        case
    }
}

/// Whether a git before 2.52 takes `**` for directories although it is not a whole name: it does where all
/// before it is plain.
fn is_misread(line: &[u8]) -> bool {
    let line = line.strip_prefix(b"!").unwrap_or(line);
    let plain = line.iter().position(|byte| b"*?[\\".contains(byte)).unwrap_or(line.len());
    let (before, rest) = line.split_at(plain);
    let anchored = line.strip_suffix(b"/").unwrap_or(line).contains(&b'/');
    anchored && rest.starts_with(b"**") && before.last().is_some_and(|byte| *byte != b'/')
}

#[test]
fn a_table_of_tricky_rules_is_as_in_git() {
    let Some(repository) = Repository::or_skip() else { return };
    assert!(
        TABLE.iter().flat_map(|(rules, _)| rules.split(|byte| *byte == b'\n')).all(|line| !is_misread(line))
    );
    let cases: Vec<Case> = TABLE.iter().map(|(rules, paths)| Case::new(rules, paths)).collect();
    compare(&repository, &cases);
}

#[test]
fn every_byte_is_in_the_same_classes_as_in_git() {
    let Some(repository) = Repository::or_skip() else { return };
    let names: Vec<Bytes> = (1..=255).filter(|byte| *byte != b'/').map(|byte| vec![b'x', byte]).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let cases: Vec<Case> =
        CLASSES.iter().map(|class| Case::new(format!("x[[:{class}:]]").as_bytes(), &names)).collect();
    compare(&repository, &cases);
}

#[test]
fn rules_at_random_are_as_in_git() {
    let Some(repository) = Repository::or_skip() else { return };
    let mut dice = Dice(0x5eed_0f5e_a3a1_1000);
    let cases: Vec<Case> = (0..1200).map(|_| dice.case()).collect();
    let (yes, no) = compare(&repository, &cases);
    // Otherwise the pieces and names do not meet, and this shows nothing.
    assert!(yes > 2000 && no > 5000, "{yes} ignored, {no} not");
}

#[test]
fn files_at_the_root_and_below_are_as_in_git() {
    let Some(repository) = Repository::or_skip() else { return };
    let mut case =
        Case::new(b"*.o\n/a/x\n/keep\n!b/x\n", &[b"a.o", b"a/x", b"b/x", b"a/b/x", b"keep", b"a/keep"]);
    case.files.insert(b"a".to_vec(), b"!*.o\n/b/y\nkeep\n".to_vec());
    case.files.insert(b"a/b".to_vec(), b"x.o\n!y\n!keep\n/z/\n".to_vec());
    for name in ["x.o", "y.o", "y", "keep", "z/", "s/x.o", "s/z/", "s/y"] {
        case.ask(format!("a/b/{name}").as_bytes());
        case.ask(format!("a/{name}").as_bytes());
        case.ask(format!("c/{name}").as_bytes());
    }
    case.write(&repository.tree());
    let paths: Vec<Bytes> = case.paths.iter().cloned().collect();
    let by_git = repository.ignored(&paths);
    for path in &paths {
        assert_eq!(case.is_ignored(path), by_git.contains(path), "{}", path.escape_ascii());
    }
}
