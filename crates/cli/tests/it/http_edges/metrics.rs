//! `/metrics`, read as Prometheus reads it: the rules of its text format, and those of `promtool check metrics`.

use crate::http_edges::server::{Server, is_there};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    process::{Command, Stdio},
};

type Labels = Vec<(String, String)>;

/// All of one name, with what is said about it.
#[derive(Debug, Default)]
struct Family {
    help: Option<String>,
    kind: Option<String>,
    samples: Vec<(String, Labels, f64)>,
}

fn is_name(text: &str, colons: bool) -> bool {
    let good = |at: usize, c: char| {
        c == '_' || (colons && c == ':') || c.is_ascii_alphabetic() || (at > 0 && c.is_ascii_digit())
    };
    !text.is_empty() && text.chars().enumerate().all(|(at, c)| good(at, c))
}

/// `name="value",…` up to the brace; what is behind it.
fn labels(mut rest: &str) -> (Labels, &str) {
    let mut all = Labels::new();
    loop {
        if let Some(behind) = rest.strip_prefix('}') {
            return (all, behind);
        }
        let (name, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("no label in {rest:?}"));
        assert!(is_name(name, false) && !name.starts_with("__"), "{name:?} is no name of a label");
        assert!(!all.iter().any(|(each, _)| each == name), "the label {name} is there twice");
        let (value, behind) = quoted(value);
        all.push((name.to_owned(), value));
        rest = behind.strip_prefix(',').unwrap_or(behind);
    }
}

/// A value up to its quote, and what is behind that.
fn quoted(text: &str) -> (String, &str) {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, c @ ('\\' | '"'))) => value.push(c),
                other => panic!("{other:?} must not be escaped in {text:?}"),
            },
            c => value.push(c),
        }
    }
    panic!("no end of the value in {text:?}")
}

fn number(text: &str) -> f64 {
    match text {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        text => text.parse().unwrap_or_else(|_| panic!("{text:?} is no number")),
    }
}

fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line:?} has no value"));
    let (name, rest) = line.split_at(end);
    assert!(is_name(name, true), "{name:?} is no name");
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest),
        None => (Labels::new(), rest),
    };
    let mut words = rest.split_whitespace();
    let value = number(words.next().unwrap_or_else(|| panic!("{line:?} has no value")));
    if let Some(time) = words.next() {
        time.parse::<i64>().unwrap();
    }
    assert_eq!(words.next(), None, "{line:?}");
    (name.to_owned(), labels, value)
}

/// The name that a sample's family has.
fn family_of<'a>(families: &BTreeMap<String, Family>, name: &'a str) -> &'a str {
    let parts = ["_bucket", "_sum", "_count"].iter().filter_map(|end| name.strip_suffix(*end));
    let is_histogram =
        |base: &&str| families.get(*base).is_some_and(|family| family.kind.as_deref() == Some("histogram"));
    parts.into_iter().find(is_histogram).unwrap_or(name)
}

/// The families of a scrape, in their order. What breaks a rule of the format is an error.
fn parse(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'), "the last line has no end");
    let (mut families, mut last) = (BTreeMap::<String, Family>::new(), String::new());
    let mut over = BTreeSet::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        if let Some(comment) = line.strip_prefix('#') {
            let mut words = comment.trim_start().splitn(3, ' ');
            let what = words.next().unwrap_or_default();
            let (name, rest) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            if matches!(what, "HELP" | "TYPE") {
                let family = families.entry(name.to_owned()).or_default();
                assert!(is_name(name, true) && family.samples.is_empty(), "{line} comes too late");
                let place = if what == "HELP" { &mut family.help } else { &mut family.kind };
                assert!(place.replace(rest.to_owned()).is_none(), "{line} comes again");
            }
            continue;
        }
        let (name, labels, value) = sample(line);
        let base = family_of(&families, &name).to_owned();
        if base != last {
            assert!(over.insert(base.clone()), "the samples of {base} are not together");
            last.clone_from(&base);
        }
        families.entry(base).or_default().samples.push((name, labels, value));
    }
    families
}

/// The rules of good names, and those of what is counted.
fn check(families: &BTreeMap<String, Family>) {
    for (name, family) in families {
        assert!(!family.samples.is_empty(), "{name} has no samples");
        assert!(family.help.as_ref().is_some_and(|help| !help.is_empty()), "{name} has no help");
        let mut seen = BTreeSet::new();
        for (name, labels, _) in &family.samples {
            let mut labels = labels.clone();
            labels.sort();
            assert!(seen.insert((name.clone(), labels)), "a sample of {name} is there twice");
        }
        match family.kind.as_deref() {
            Some("counter") => {
                assert!(name.ends_with("_total"), "{name} counts, and does not end in _total");
                assert!(family.samples.iter().all(|(.., value)| *value >= 0.0), "{name} is below nothing");
            }
            Some("gauge") => assert!(!name.ends_with("_total"), "{name} is no counter"),
            Some("histogram") => histogram(name, family),
            other => panic!("{name} is {other:?}"),
        }
    }
}

/// Of a histogram, what has the same labels. Buckets: up to where, and how many.
#[derive(Debug, Default)]
struct Series {
    buckets: Vec<(f64, f64)>,
    sum: Option<f64>,
    count: Option<f64>,
}

/// Buckets hold all below them too, and the last holds all.
fn histogram(name: &str, family: &Family) {
    let mut all: BTreeMap<Labels, Series> = BTreeMap::new();
    for (part, labels, value) in &family.samples {
        let others: Labels = labels.iter().filter(|(name, _)| name != "le").cloned().collect();
        let one = all.entry(others).or_default();
        match part.strip_prefix(name) {
            Some("_bucket") => {
                let le = labels.iter().find(|(name, _)| name == "le").expect("a bucket without le");
                one.buckets.push((number(&le.1), *value));
            }
            Some("_sum") => one.sum = Some(*value),
            Some("_count") => one.count = Some(*value),
            _ => panic!("{part} is no part of the histogram {name}"),
        }
    }
    for (labels, Series { buckets, sum, count }) in all {
        assert!(sum.is_some_and(|sum| sum >= 0.0), "{name} {labels:?} has no sum");
        let rising = |pair: &[(f64, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
        assert!(buckets.windows(2).all(rising), "{name} {labels:?}: {buckets:?}");
        let last = buckets.last().copied();
        assert_eq!(last, count.map(|count| (f64::INFINITY, count)), "{name} {labels:?}");
    }
}

/// Where it is installed, Prometheus's own tool has a look too.
fn promtool(text: &str) {
    if !is_there("promtool", "--version") {
        return;
    }
    let mut tool = Command::new("promtool");
    tool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = tool.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn numbers_are_as_prometheus_reads_them() {
    let server = Server::start();
    let id = server.sandbox();
    server.run(&id, "true");
    server.turn("true");
    server.get("/nowhere").problem(404);
    server.get("/sandboxes/%22%0a%5c").problem(400);
    server.ask("BREW", "/sandboxes").send().problem(405);
    let scraped = server.get("/metrics").is(200);
    assert_eq!(scraped.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = scraped.text();
    let families = parse(&text);
    check(&families);
    promtool(&text);
    for name in
        ["http_requests_total", "http_request_duration_seconds", "http_connections", "seawall_store_up"]
    {
        assert!(families.contains_key(name), "there is no {name}");
    }
    // Routes are the document's, not what callers make up.
    let routes: BTreeSet<&str> = families["http_requests_total"]
        .samples
        .iter()
        .flat_map(|(_, labels, _)| labels.iter().filter(|(name, _)| name == "route"))
        .map(|(_, value)| value.as_str())
        .collect();
    assert!(routes.contains("/sandboxes/{id}/exec") && routes.contains("none"), "{routes:?}");
    assert!(!text.contains(&id) && !text.contains("nowhere") && !text.contains("BREW"), "{text}");
}

#[test]
fn numbers_count() {
    let server = Server::with("public_metrics = true\n");
    let count = || {
        let families = parse(&server.anonymous("GET", "/metrics").send().is(200).text());
        let wanted = [("method", "POST"), ("route", "/conversations"), ("status", "201")];
        let is_it = |labels: &Labels| {
            wanted.iter().all(|(name, value)| labels.iter().any(|(n, v)| n == name && v == value))
        };
        let samples = families.get("http_requests_total").map(|family| family.samples.as_slice());
        let found = samples.unwrap_or_default().iter().find(|(_, labels, _)| is_it(labels));
        found.map_or(0.0, |(.., value)| *value)
    };
    assert_eq!(count(), 0.0);
    for _ in 0..3 {
        server.post("/conversations", &json!({})).is(201);
    }
    assert_eq!(count(), 3.0);
}

#[test]
fn the_reader_of_numbers_knows_its_rules() {
    let good = "# HELP a_total A.\n# TYPE a_total counter\na_total{b=\"c\\\"\\n\\\\\"} 1\n\n\
        # HELP h H.\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n";
    let families = parse(good);
    check(&families);
    assert_eq!(families["a_total"].samples[0].1, [("b".to_owned(), "c\"\n\\".to_owned())]);
    for (from, to) in [
        ("# HELP a_total A.\n", ""),
        ("a_total counter", "a_total gauge"),
        ("h_bucket{le=\"+Inf\"} 2\n", ""),
        ("le=\"1\"} 1", "le=\"1\"} 3"),
        ("h_count 2", "h_count 3"),
        ("{b=", "{9b="),
        ("} 1\n\n", "} one\n\n"),
    ] {
        let bad = good.replace(from, to);
        let result = std::panic::catch_unwind(|| check(&parse(&bad)));
        assert!(result.is_err(), "{bad}");
    }
}
