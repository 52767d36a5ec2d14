//! Finds out whether native boxes work on this machine, by starting one.

use super::provider::NativeProvider;
use seawall_api::{AccountId, SandboxId, sandbox::SandboxSpec};
use seawall_core::{
    Error, Result,
    ports::{Provider, Volumes},
};

impl NativeProvider {
    /// Starts a box and removes it. The id is always the same, so a probe that a crash cut short leaves nothing that the
    /// next one does not remove.
    pub(super) async fn try_box(&self) -> Result<()> {
        let id = SandboxId::PROBE;
        self.remove(id, Volumes::Delete).await?;
        let started = match self.create(id, &SandboxSpec::default(), AccountId::LOCAL).await {
            Ok(_) => self.start(id).await,
            Err(error) => Err(error),
        };
        self.remove(id, Volumes::Delete).await?;
        match started {
            // A full disk is temporary, and no reason to choose another provider.
            Err(error) if error.code() == "disk_reserve" => Ok(()),
            Err(error) => {
                let fix = fix(&error.chain());
                Err(Error::new(error.kind(), format!("native boxes do not start here: {fix}"))
                    .with_source(error))
            }
            Ok(_) => Ok(()),
        }
    }
}

/// Returns what an operator can do about an error of a start.
fn fix(found: &str) -> &'static str {
    match () {
        () if found.contains("user namespace") => {
            "allow user namespaces: sysctl -w user.max_user_namespaces=15000; on Debian also \
             kernel.unprivileged_userns_clone=1; on Ubuntu also kernel.apparmor_restrict_unprivileged_userns=0; or run \
             seawall as root"
        }
        () if found.contains("Function not implemented") => "use Linux 5.12 or later",
        () if found.contains("proc:") => {
            "/proc must be whole: in a container, run it with --security-opt systempaths=unconfined"
        }
        () => "run seawall as root, or choose another provider with --provider",
    }
}
