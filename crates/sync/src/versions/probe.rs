//! Whether the store refuses a second create of one key. Not every one does, and a version rests on it.

use super::Versions;
use crate::{Result, retry::retry};
use bytes::Bytes;
use seawall_api::ErrorKind;

pub const PROBES: &str = ".probe/";
const STEP: &str = "asking what the store can do";

impl Versions {
    /// Asks the store itself, once per workspace.
    pub(crate) async fn refuses_second_create(&self) -> Result<bool> {
        let key = format!("{PROBES}{}", self.ids.next());
        // A lost reply makes the first try look like a second one, which proves it as well.
        match retry(STEP, || self.bucket.create(&key, Bytes::from_static(b"1"))).await {
            // It says so itself.
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(false),
            other => drop(other?),
        }
        let again = retry(STEP, || self.bucket.create(&key, Bytes::from_static(b"2"))).await?;
        if let Err(error) = self.bucket.delete(&key).await {
            tracing::debug!(%key, %error, "a probe stays");
        }
        Ok(!again)
    }
}
