//! Cloning repositories into workspaces. Git runs in the box; the server carries its requests.

use crate::{Error, ExecOutput, ExecRequest, Result, Sandboxes, exec, templates::GitPart};
use seawall_api::{AccountId, ErrorKind, SandboxId};
use tokio::sync::watch;

/// Clones into a folder that need not be empty, and keeps its files. The repository appears when it is complete, because other
/// sandboxes can use the same volume.
const CLONE: &str = r#"[ ! -e .git ] || exit 0
new=$(mktemp -d .git.new-XXXXXX) || exit 1
trap 'rm -rf "$new"' EXIT
trap 'exit 1' HUP INT TERM
git() { command git --git-dir="$new" --work-tree=. "$@"; }
command git init -q --bare "$new" && git config core.bare false && git remote add origin "$SEAWALL_REPO" || exit 1
mkdir -p "$new/info" && printf '%s\n' '/.sandbox-state*' '/.seawall/' '/.git.new-*' >> "$new/info/exclude" || exit 1
git fetch -q ${SEAWALL_DEPTH:+--depth "$SEAWALL_DEPTH"} origin "${SEAWALL_REF:-HEAD}" || exit 1
branch=$SEAWALL_REF
[ -n "$branch" ] || branch=$(git ls-remote --symref origin HEAD | sed -n 's|^ref: refs/heads/\([^[:space:]]*\).*|\1|p')
git checkout -q -B "${branch:-main}" FETCH_HEAD || exit 1
chmod 755 "$new" && mv -T "$new" .git 2>/dev/null || [ -e .git ]"#;
const CLONE_MS: u64 = 30 * 60 * 1000;
/// Bytes of git's own message that an error repeats.
const SAID: usize = 500;

/// Clones a repository unless the workspace has one. `port` is the server's on the loopback of the box. A cancelled clone
/// ends without an error.
pub(crate) async fn clone(
    sandboxes: &Sandboxes,
    sandbox: SandboxId,
    git: &GitPart,
    port: u16,
    cancelled: Option<watch::Receiver<bool>>,
) -> Result<()> {
    let mut request = ExecRequest::new(["/bin/sh", "-c", CLONE]);
    request.start.env = git.environment(port);
    request.start.env.extend([
        ("SEAWALL_REPO".to_owned(), git.repo.clone()),
        ("SEAWALL_REF".to_owned(), git.reference.clone().unwrap_or_default()),
        ("SEAWALL_DEPTH".to_owned(), git.depth.map(|depth| depth.to_string()).unwrap_or_default()),
    ]);
    request.start.timeout_ms = Some(CLONE_MS);
    match exec::run_unless(sandboxes, sandbox, request, cancelled).await? {
        Some(output) if !output.status.success() => Err(not_cloned(git, &output)),
        _ => Ok(()),
    }
}

fn not_cloned(git: &GitPart, output: &ExecOutput) -> Error {
    let said = String::from_utf8_lossy(&output.stderr);
    let said: String = said.trim().chars().take(SAID).collect();
    Error::new(ErrorKind::ExecFailed, format!("{} could not be cloned: {said}", git.repo))
}

/// Whether a text is the address of a repository, without credentials.
pub(crate) fn is_address(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let parts = rest.map(|rest| rest.trim_end_matches('/').split('/').count());
    matches!(parts, Some(3..)) && !text.contains(['@', '?', '#', ' ']) && !text.contains("..")
}

/// The hosts of repositories that accounts other than `local` may name. A pattern `*.example.com` covers all names below.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceHosts(Vec<String>);

impl SourceHosts {
    pub fn new(hosts: Vec<String>) -> SourceHosts {
        SourceHosts(hosts)
    }

    /// Refuses a repository that an account may not name: the server would reach any machine that it can reach.
    pub fn check(&self, account: AccountId, source: &str) -> Result<()> {
        let host = host(source).to_ascii_lowercase();
        let covers = |pattern: &String| match pattern.strip_prefix('*') {
            Some(below) => host.ends_with(below) && host.len() > below.len(),
            None => host == *pattern,
        };
        if account == AccountId::LOCAL || self.0.iter().any(covers) {
            return Ok(());
        }
        let message = format!(
            "repositories of `{host}` may not be named here; the operator can list the host in `hosts` of section [git]"
        );
        Err(Error::new(ErrorKind::Denied, message).with_code("source_denied"))
    }
}

/// The host of an address, with its port if it has one.
fn host(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    rest.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p10_accounts_name_repositories_of_listed_hosts_only() {
        let hosts = SourceHosts::new(vec!["github.com".to_owned(), "*.example.com".to_owned()]);
        let account = AccountId::generate();
        for (source, allowed) in [
            ("https://github.com/owner/repo", true),
            ("https://GitHub.com/owner/repo", true),
            ("https://github.com:8443/owner/repo", false),
            ("https://git.example.com/owner/repo", true),
            ("https://example.com/owner/repo", false),
            ("https://evilexample.com/owner/repo", false),
            ("http://127.0.0.1/owner/repo", false),
            ("http://169.254.169.254/latest/meta-data/x", false),
        ] {
            assert_eq!(hosts.check(account, source).is_ok(), allowed, "{source}");
            assert!(hosts.check(AccountId::LOCAL, source).is_ok());
        }
    }

    #[test]
    fn addresses_have_no_credentials() {
        for (text, good) in [
            ("https://github.com/owner/repo", true),
            ("https://github.com/owner/repo.git/", true),
            ("https://user:secret@github.com/owner/repo", false),
            ("https://github.com/owner/../repo", false),
            ("https://github.com/owner", false),
            ("git@github.com:owner/repo", false),
            ("file:///etc/x/y", false),
        ] {
            assert_eq!(is_address(text), good, "{text}");
        }
    }
}
