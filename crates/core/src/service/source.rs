//! The repository that a request named for a workspace (P10).

use super::{SandboxService, Wanted};
use crate::{
    Error, Result,
    ports::gateway::{Access, GitAccess, Meter},
    repositories,
    templates::GitPart,
    tunnels::Serve,
};
use futures::FutureExt;
use std::sync::Arc;

impl SandboxService {
    /// Clones the repository of a sandbox's specification, unless the workspace has one. The clone reads without a token, and
    /// reaches that repository only.
    pub(super) async fn clone_source(&self, wanted: &Wanted) -> Result<()> {
        let row = self.rows.find(wanted.sandbox).await?;
        let Some(source) = row.and_then(|row| row.spec.workspace_source) else { return Ok(()) };
        let gateway = self.gateway.clone();
        let gateway = gateway.ok_or_else(|| Error::unavailable("this server reaches no repositories"))?;
        let git = GitPart { repo: source, ..GitPart::default() };
        let access = Arc::new(Access {
            account: wanted.account,
            sandbox: wanted.sandbox,
            conversation: wanted.conversation,
            turn: None,
            models: None,
            git: Some(GitAccess { url: git.url(), token: None, may_push: false }),
            meter: Arc::new(Meter::default()),
        });
        let serve: Serve = Arc::new(move |connection| {
            let (gateway, access) = (gateway.clone(), access.clone());
            async move { gateway.serve(connection, access).await }.boxed()
        });
        let exposed = self.sandboxes.serve_port(wanted.sandbox, 0, serve).await?;
        let cancelled = wanted.cancelled.clone();
        repositories::clone(&self.sandboxes, wanted.sandbox, &git, exposed.port, cancelled).await
    }
}
