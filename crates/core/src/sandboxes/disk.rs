//! What a sandbox's disk can hold, for those who take files out of it.

use super::{Sandboxes, info, refused};
use crate::{
    Result,
    lifecycle::{self, Answer, Ask},
};
use seawall_api::{
    SandboxId,
    sandbox::{SandboxSpec, WORKDIR},
};
use seawall_wire::Guest;

impl Sandboxes {
    /// As [`Sandboxes::guest`], with the bytes that the sandbox's own disk can hold. None where it has no limit, or where
    /// other files are in its workspace: a volume that others share, or a folder of the host.
    pub(crate) async fn guest_with_disk(&self, id: SandboxId) -> Result<(Guest, Option<u64>)> {
        let record = self.record(id).await?;
        let found = self.find_box(&record.provider, id).await?;
        let now = info(&record, found.as_ref());
        if let Answer::Refuse(why) = lifecycle::answer(now.state, Ask::Use) {
            return Err(refused(id, now.state, why));
        }
        let guest = self.client(id, &record.provider)?;
        let limit = found.and_then(|found| found.limits.disk_mb).filter(|_| has_own_files(&record.spec));
        Ok((guest, limit.map(|mb| mb.saturating_mul(1 << 20))))
    }
}

fn has_own_files(spec: &SandboxSpec) -> bool {
    let beneath_work = |target: &str| target == WORKDIR || target.starts_with(&format!("{WORKDIR}/"));
    spec.volume.is_none() && !spec.mounts.iter().any(|mount| beneath_work(&mount.target))
}
