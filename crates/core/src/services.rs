//! All that a server, or anything else at the edge, calls.

use crate::{
    Turns,
    accounts::AccountCatalog,
    keys::Keys,
    ports::{Clock, store::Stores},
    service::SandboxService,
};
use std::{fmt, sync::Arc};

#[derive(Clone)]
pub struct Services {
    pub sandboxes: SandboxService,
    pub turns: Turns,
    pub stores: Stores,
    pub keys: Keys,
    pub accounts: AccountCatalog,
    pub clock: Arc<dyn Clock>,
    /// C5: where the request says nothing.
    pub delete_terminates_sandbox: bool,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").finish_non_exhaustive()
    }
}
