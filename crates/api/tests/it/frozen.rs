//! What goes over the wire, frozen: a host and a guest of different builds must understand each other.
//!
//! `fixtures/v1.txt` has a line `name hex` for each sample: the whole frame as it is sent. A line that is
//! there never changes. What is new is added by
//!
//! ```sh
//! SEAWALL_FREEZE=1 cargo test -p seawall-api --test it frozen::
//! ```

mod forward;
mod samples;

use bytes::BytesMut;
use samples::{Sample, samples};
use seawall_api::{
    frame::{self, Frame},
    hello::{MAX_VERSION, MIN_VERSION, PREAMBLE},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    path::{Path, PathBuf},
    sync::LazyLock,
};

const FREEZE: &str = "SEAWALL_FREEZE";
const HOW: &str = "run `SEAWALL_FREEZE=1 cargo test -p seawall-api --test it frozen::` and commit the file";

/// The committed bytes by name, or why there are none. Read once: freezing writes, and tests run together.
static FROZEN: LazyLock<Result<BTreeMap<String, String>, String>> = LazyLock::new(load);

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1.txt")
}

fn load() -> Result<BTreeMap<String, String>, String> {
    let path = path();
    let shown = path.display();
    let text = match fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(format!("{shown}: {error}")),
    };
    let freezing = env::var(FREEZE).is_ok_and(|value| value == "1");
    if text.is_none() && !freezing {
        return Err(format!("{shown} is missing; {HOW}"));
    }
    let mut text = text.unwrap_or_default();
    let mut frozen = parse(&text).map_err(|line| format!("{shown}: `{line}` is no `name hex`"))?;
    if freezing {
        // Lines are added, never changed: a changed one is for the tests to find.
        for sample in samples().iter().filter(|sample| !frozen.contains_key(&sample.name)) {
            text.push_str(&format!("{} {}\n", sample.name, hex(&sample.bytes)));
        }
        let folder = path.parent().unwrap_or(&path);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, &text))
            .map_err(|error| format!("{shown}: {error}"))?;
        frozen = parse(&text).map_err(|line| format!("{shown}: `{line}` is no `name hex`"))?;
    }
    Ok(frozen)
}

/// A line that is none, or that is there twice, is the error.
fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut lines = BTreeMap::new();
    for line in text.lines() {
        let (name, hex) = line.split_once(' ').ok_or(line)?;
        if unhex(hex).is_none() || lines.insert(name.to_owned(), hex.to_owned()).is_some() {
            return Err(line.to_owned());
        }
    }
    Ok(lines)
}

#[track_caller]
fn frozen() -> &'static BTreeMap<String, String> {
    FROZEN.as_ref().unwrap_or_else(|why| panic!("{why}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let nibble = |digit: u8| char::from(digit).to_digit(16);
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let byte = |pair: &[u8]| u8::try_from(nibble(pair[0])? * 16 + nibble(pair[1])?).ok();
    text.as_bytes().chunks(2).map(byte).collect()
}

/// The one frame that these bytes are.
fn frame_of(bytes: &[u8]) -> Frame {
    let mut buffer = BytesMut::from(bytes);
    let frame = frame::take(&mut buffer).unwrap().expect("a whole frame");
    assert!(buffer.is_empty(), "{} bytes behind the frame", buffer.len());
    frame
}

/// What was committed for a sample.
fn bytes_of(sample: &Sample) -> Result<Vec<u8>, String> {
    let hex =
        frozen().get(&sample.name).ok_or_else(|| format!("{} is not frozen yet; {HOW}", sample.name))?;
    unhex(hex).ok_or_else(|| format!("{}: `{hex}` is no hex", sample.name))
}

#[track_caller]
fn none(failures: Vec<String>) {
    assert!(failures.is_empty(), "\n{}\n", failures.join("\n"));
}

#[test]
fn what_is_sent_is_as_it_was() {
    let changed = |sample: &Sample| match bytes_of(sample) {
        Ok(bytes) if bytes == sample.bytes => None,
        Ok(bytes) => Some(format!(
            "{name}: the bytes on the wire changed\n  were {was}\n  are  {is}\n  A build that is in use speaks \
             the old ones: bump the protocol version ({MIN_VERSION} to {MAX_VERSION} in \
             crates/api/src/hello.rs) and freeze a file of its own, or take the change back.",
            name = sample.name,
            was = hex(&bytes),
            is = hex(&sample.bytes),
        )),
        Err(why) => Some(why),
    };
    none(samples().iter().filter_map(changed).collect());
}

#[test]
fn what_was_sent_is_still_understood() {
    let misread = |sample: &Sample| match bytes_of(sample) {
        Ok(bytes) => (sample.check)(frame_of(&bytes)).err().map(|why| format!("{}: {why}", sample.name)),
        Err(why) => Some(why),
    };
    none(samples().iter().filter_map(misread).collect());
}

#[test]
fn nothing_that_was_frozen_is_forgotten() {
    let samples = samples();
    let known: BTreeSet<&str> = samples.iter().map(|sample| sample.name.as_str()).collect();
    let forgotten = frozen().keys().filter(|name| !known.contains(name.as_str()));
    none(
        forgotten
            .map(|name| format!("{name} is frozen and has no sample: old builds still send it"))
            .collect(),
    );
}

#[test]
fn samples_have_names_of_their_own() {
    let mut seen = BTreeSet::new();
    for sample in samples() {
        assert!(!sample.name.contains(char::is_whitespace), "`{}`", sample.name);
        assert!(seen.insert(sample.name.clone()), "{} is there twice", sample.name);
    }
}

#[test]
fn every_request_has_a_sample() {
    let names: BTreeSet<String> = samples().into_iter().map(|sample| sample.name).collect();
    let variants = variants(include_str!("../../src/message.rs"), "Request");
    assert!(variants.len() >= 23, "only {variants:?} were found");
    let missing = variants.into_iter().filter(|variant| !names.contains(&format!("request.{variant}")));
    none(missing.map(|variant| format!("request.{variant} has no sample")).collect());
}

/// The variants of an enum as they are called on the wire, read from its source: it is not exhaustive
/// to other crates, so the compiler does not say when one is missing.
fn variants(source: &str, name: &str) -> Vec<String> {
    let head = format!("pub enum {name} {{");
    let body = source.lines().skip_while(|line| *line != head).skip(1).take_while(|line| *line != "}");
    body.filter_map(|line| {
        let rest = line.strip_prefix("    ")?;
        let word: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
        word.starts_with(|first: char| first.is_ascii_uppercase()).then(|| snake(&word))
    })
    .collect()
}

fn snake(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[test]
fn the_preamble_is_the_preamble() {
    assert_eq!(hex(&PREAMBLE), "53454157414c4c01");
    assert_eq!((MIN_VERSION, MAX_VERSION), (1, 1), "freeze a file for the new version beside this one");
}
