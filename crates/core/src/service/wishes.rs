//! Applies requests for sandboxes to templates, and refuses requests that an account may not make.

use crate::{Error, Result};
use seawall_api::{
    AccountId, ErrorKind,
    http::CreateSandbox,
    sandbox::{HostMount, SandboxSpec},
};

/// Applies the choices of a request over those of its template.
pub(super) fn with_wishes(template: SandboxSpec, ask: &CreateSandbox) -> SandboxSpec {
    let mut spec = template;
    spec.image = ask.image.clone().or(spec.image);
    spec.env.extend(ask.env.clone());
    spec.labels.extend(ask.labels.clone());
    spec.user = ask.user.clone().or(spec.user);
    spec.limits = ask.limits.or(spec.limits);
    let new = ask.mounts.iter().filter(|mount| !spec.mounts.contains(mount)).cloned().collect::<Vec<_>>();
    spec.mounts.extend(new);
    spec.timeouts = ask.timeouts.or(spec.timeouts);
    spec.command = ask.command.clone().or(spec.command);
    let new = ask.ports.iter().filter(|port| !spec.ports.contains(port)).copied().collect::<Vec<_>>();
    spec.ports.extend(new);
    spec.read_only_root = ask.read_only_root.unwrap_or(spec.read_only_root);
    spec.allow_network = ask.allow_network.unwrap_or(spec.allow_network);
    // Each of the two replaces the template's choice of the other.
    spec.network = ask.network.clone().or(spec.network.filter(|_| ask.allow_network != Some(true)));
    spec.allow_network &= ask.network.is_none();
    spec.runtime = ask.runtime.clone().or(spec.runtime);
    spec.project_id = ask.project_id.clone().or(spec.project_id);
    spec.workspace_source = ask.workspace_source.clone();
    spec
}

/// The same request, whose workspace of the host is a mount.
pub(super) fn with_workspace(ask: &CreateSandbox) -> CreateSandbox {
    let mut ask = ask.clone();
    ask.mounts.extend(ask.workspace_path.take().map(HostMount::workspace));
    ask
}

/// Networks of the operator's lead to the operator's machines.
pub(super) fn check_network(account: AccountId, ask: &CreateSandbox) -> Result<()> {
    if ask.allow_network == Some(true) && ask.network.is_some() {
        let message = "`allow_network` and `network` exclude each other; leave one of them out";
        return Err(Error::invalid(message).with_code("invalid_config"));
    }
    if ask.network.is_none() || account == AccountId::LOCAL {
        return Ok(());
    }
    let message =
        "only the operator, or a template, may name a network; use `allow_network` for public addresses";
    Err(Error::new(ErrorKind::Denied, message).with_code("network_denied"))
}
