//! The environment variables that a server's settings depend on: what a background server inherits from the command that
//! starts it, and how a later command notices that its own are different.

use seawall_core::templates::Templates;
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::Path,
};

/// Variables that programs of any kind need.
const GENERAL: [&str; 14] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TZ",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "RUST_BACKTRACE",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
];
/// Proxies to upstream servers, in either case.
const PROXIES: [&str; 4] = ["http_proxy", "https_proxy", "no_proxy", "all_proxy"];
/// Settings without one of the prefixes.
const SETTINGS: [&str; 8] = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "S3_BUCKET_AGENT_DOCS",
    "KUBECONFIG",
    "SANDBOX_SYNC_STALE_THRESHOLD",
];
const PREFIXES: [&str; 7] = ["SEAWALL_", "SANDBOX_SESSION_", "AWS_", "DOCKER_", "GOOGLE_", "AZURE_", "LC_"];
/// Variables of a command and not of its server.
const OF_COMMANDS: [&str; 8] = [
    "SEAWALL_DATA",
    "SEAWALL_CONFIG",
    "SEAWALL_URL",
    "SEAWALL_KEY",
    "SEAWALL_ACCOUNT",
    "SEAWALL_PROVIDER",
    "SEAWALL_BACKGROUND",
    "SEAWALL_STOP_GRACE_SECONDS",
];
/// Variables that change a server's output but not its behaviour. A server inherits them, and no comparison includes them.
const NOT_COMPARED: [&str; 5] = ["SEAWALL_LOG", "SEAWALL_EXEC_", "SEAWALL_TEST_", "SEAWALL_BENCH_", "LC_"];
/// Parts of names whose values are secrets.
const SECRETS: [&str; 7] = ["KEY", "SECRET", "TOKEN", "PASSWORD", "CREDENTIAL", "DATABASE_URL", "PROXY"];

/// Programs of agents may be named relative to the current folder, which a background server does not have.
const PATHS: [&str; 2] = ["SEAWALL_CLAUDE_CODE", "SEAWALL_CODEX"];

/// The variables that a background server starts with. `named`: variables that templates name.
pub fn inherited(
    all: impl Iterator<Item = (OsString, OsString)>,
    named: &[String],
    folder: &Path,
) -> Vec<(OsString, OsString)> {
    let absolute = |name: &OsStr, value: OsString| match PATHS.iter().any(|path| name == *path) {
        true => folder.join(value).into_os_string(),
        false => value,
    };
    all.filter(|(name, _)| name.to_str().is_some_and(|name| is_inherited(name, named)))
        .map(|(name, value)| {
            let value = absolute(&name, value);
            (name, value)
        })
        .collect()
}

fn is_inherited(name: &str, named: &[String]) -> bool {
    GENERAL.contains(&name) || is_proxy(name) || is_setting(name, named)
}

fn is_proxy(name: &str) -> bool {
    PROXIES.iter().any(|proxy| proxy.eq_ignore_ascii_case(name))
}

/// Whether a server's settings come from this variable.
fn is_setting(name: &str, named: &[String]) -> bool {
    let known = SETTINGS.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    (known && !OF_COMMANDS.contains(&name)) || named.iter().any(|one| one == name)
}

/// The settings of an environment by their names, as they are compared and shown. A secret is a digest.
pub fn compared(
    all: impl Iterator<Item = (OsString, OsString)>,
    named: &[String],
) -> BTreeMap<String, String> {
    let shown = |(name, value): (OsString, OsString)| {
        let name = name.into_string().ok().filter(|name| is_setting(name, named))?;
        if value.is_empty() || NOT_COMPARED.iter().any(|prefix| name.starts_with(prefix)) {
            return None;
        }
        let is_secret = named.contains(&name) || SECRETS.iter().any(|part| name.contains(part));
        let value = match is_secret {
            true => digest(&value),
            false => value.to_string_lossy().into_owned(),
        };
        Some((name, value))
    };
    all.filter_map(shown).collect()
}

fn digest(value: &OsStr) -> String {
    let hash = Sha256::digest(value.as_encoded_bytes());
    let short: String = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("{SECRET}{short}")
}

const SECRET: &str = "sha256:";

/// One line for each variable that is set here and that the server has with another value, or not at all.
pub fn differences(server: &BTreeMap<String, String>, here: &BTreeMap<String, String>) -> Vec<String> {
    let differs = |(name, value): (&String, &String)| match server.get(name) {
        Some(other) if other == value => None,
        _ if value.starts_with(SECRET) => Some(format!("{name} (a secret) is another one here")),
        Some(other) => Some(format!("{name} is `{value}` here and `{other}` there")),
        None => Some(format!("{name} is `{value}` here and not set there")),
    };
    here.iter().filter_map(differs).collect()
}

/// The names of variables that templates read from the server's environment.
pub fn named_by(templates: &Templates) -> Vec<String> {
    let mut names: Vec<String> = templates.all().flat_map(|template| template.variables()).collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn a_server_gets_settings_and_no_secrets_of_others() {
        let all = vars(&[
            ("PATH", "/bin"),
            ("HTTPS_PROXY", "http://proxy"),
            ("AWS_REGION", "eu"),
            ("SEAWALL_KEY", "sw_mine"),
            ("SEAWALL_CODEX", "tools"),
            ("GITHUB_TOKEN", "t"),
            ("SSH_AUTH_SOCK", "/tmp/agent"),
            ("CLAUDE_SESSION_ID", "x"),
        ]);
        let names = |named: &[String]| -> Vec<String> {
            let kept = inherited(all.clone().into_iter(), named, Path::new("/here"));
            kept.into_iter().map(|(name, _)| name.into_string().unwrap()).collect()
        };
        assert_eq!(names(&[]), ["PATH", "HTTPS_PROXY", "AWS_REGION", "SEAWALL_CODEX"]);
        assert!(names(&["GITHUB_TOKEN".to_owned()]).contains(&"GITHUB_TOKEN".to_owned()));
        let kept = inherited(all.into_iter(), &[], Path::new("/here"));
        assert_eq!(kept.last().unwrap().1, "/here/tools");
    }

    #[test]
    fn differences_name_both_values_and_no_secret() {
        let compared = |pairs: &[(&str, &str)]| compared(vars(pairs).into_iter(), &[]);
        let server =
            compared(&[("AWS_REGION", "eu"), ("AWS_SECRET_ACCESS_KEY", "one"), ("DOCKER_HOST", "a")]);
        let here =
            compared(&[("AWS_REGION", "us"), ("AWS_SECRET_ACCESS_KEY", "two"), ("SEAWALL_LOG", "debug")]);
        let told = differences(&server, &here).join("\n");
        assert!(told.contains("AWS_REGION is `us` here and `eu` there"), "{told}");
        assert!(told.contains("AWS_SECRET_ACCESS_KEY (a secret)") && !told.contains("two"), "{told}");
        assert_eq!(told.lines().count(), 2);
        assert!(differences(&server, &server).is_empty());
    }
}
