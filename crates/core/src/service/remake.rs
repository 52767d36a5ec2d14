//! Making a sandbox again for another template.

use super::{Ready, SandboxService, Wanted};
use crate::{
    Result,
    ports::Volumes,
    sandboxes::Left,
    templates::{PROGRAM_DIR, Template},
};
use seawall_api::sandbox::{SandboxSpec, WORKDIR};

impl SandboxService {
    /// A sandbox of another template, without the agent's program in it.
    pub(super) async fn lacks_program(&self, wanted: &Wanted, spec: &SandboxSpec) -> Result<bool> {
        Ok(!has_program(&wanted.template, spec) && self.isolates(wanted.sandbox).await?)
    }

    /// Replaces the box by one of this template and keeps its volume.
    pub(super) async fn replace(&self, wanted: &Wanted) -> Result<Ready> {
        tracing::info!(sandbox = %wanted.sandbox, template = wanted.template.name, "the sandbox is made again for another template");
        self.sandboxes.remove(wanted.sandbox, Volumes::Keep).await?;
        let before = self.rows.find(wanted.sandbox).await?;
        self.make(wanted, before.as_ref(), Left::Failed).await
    }
}

/// The specification of a sandbox that is made again for another template. It keeps the choices of the sandbox's first
/// request: its files, its network, its runtime and its ports.
pub(super) fn made_again(before: &SandboxSpec, of_template: SandboxSpec) -> SandboxSpec {
    let of_template_has_workspace = of_template.has_host_workspace();
    let mut spec = SandboxSpec {
        volume: before.volume.clone(),
        allow_network: before.allow_network,
        network: before.network.clone(),
        runtime: before.runtime.clone(),
        project_id: before.project_id.clone(),
        workspace_source: before.workspace_source.clone(),
        ports: before.ports.clone(),
        ..of_template
    };
    let workspace = before.mounts.iter().find(|mount| mount.target == WORKDIR);
    spec.mounts.extend(workspace.filter(|_| !of_template_has_workspace).cloned());
    spec
}

pub(super) fn has_program(template: &Template, spec: &SandboxSpec) -> bool {
    let Some(needed) = &template.agent.program else { return true };
    let needed = needed.display().to_string();
    spec.mounts.iter().any(|mount| mount.target == PROGRAM_DIR && mount.source == needed)
}
