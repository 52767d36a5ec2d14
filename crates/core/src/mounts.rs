//! Which folders of the host an account may ask for.
//!
//! The decision is a pure function of names. Where a name leads on the disk is checked by the provider, which opens it.
//! Folders that templates and agents' programs need are no grants: a template furnishes them, and no request can name them.

use crate::{Error, Result};
use seawall_api::{AccountId, ErrorKind, sandbox::HostMount};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// What a tenant sees in place of the source of a mount that it may not ask for itself.
const HIDDEN: &str = "hidden";

/// A folder of the host that accounts may mount, with all that lies beneath it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountGrant {
    /// Absolute, without `.` and `..`.
    pub path: PathBuf,
    pub accounts: Grantees,
    /// False means that it is mounted to be read only.
    pub writable: bool,
}

/// The accounts that a grant is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grantees {
    /// Every account, `local` included.
    All,
    Only(BTreeSet<AccountId>),
}

impl Grantees {
    fn include(&self, account: AccountId) -> bool {
        match self {
            Grantees::All => true,
            Grantees::Only(accounts) => accounts.contains(&account),
        }
    }
}

/// All grants of an installation. Without any, no request can mount anything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountGrants(Vec<MountGrant>);

impl MountGrants {
    pub fn new(grants: Vec<MountGrant>) -> MountGrants {
        MountGrants(grants)
    }

    pub fn iter(&self) -> impl Iterator<Item = &MountGrant> {
        self.0.iter()
    }

    /// Refuses the first mount that the account may not ask for: `invalid` where the source is no plain absolute path,
    /// `denied` (`mount_denied`) where no grant covers it, or only one that does not allow writing.
    pub fn check(&self, account: AccountId, mounts: &[HostMount]) -> Result<()> {
        mounts.iter().try_for_each(|mount| self.check_one(account, mount))
    }

    fn check_one(&self, account: AccountId, mount: &HostMount) -> Result<()> {
        let source = &mount.source;
        if !is_plain(source) {
            return Err(Error::invalid(format!(
                "`{source}` cannot be mounted: give an absolute path without `.`, `..` and empty parts"
            )));
        }
        let covering = || self.covering(account, source);
        let why = match covering().next() {
            None => "is not granted to this account: the operator grants folders",
            Some(_) if mount.writable && !covering().any(|grant| grant.writable) => {
                "is granted to be read only: the operator grants writing, with `writable = true`,"
            }
            Some(_) => return Ok(()),
        };
        let message =
            format!("the mount of `{source}` {why} by `mounts` in section [native] of seawall.toml");
        Err(Error::new(ErrorKind::Denied, message).with_code("mount_denied"))
    }

    /// Mounts as the account may see them: of those that it could not have asked for, the source stays the operator's.
    pub fn shown(&self, account: AccountId, mounts: &mut [HostMount]) {
        if account == AccountId::LOCAL {
            return;
        }
        for mount in mounts.iter_mut().filter(|mount| self.covering(account, &mount.source).next().is_none())
        {
            mount.source = HIDDEN.to_owned();
        }
    }

    fn covering<'a>(&'a self, account: AccountId, source: &'a str) -> impl Iterator<Item = &'a MountGrant> {
        let source = Path::new(source);
        self.0.iter().filter(move |grant| grant.accounts.include(account) && source.starts_with(&grant.path))
    }
}

/// Whether a path is absolute and says where it leads: no `.`, no `..`, no empty part.
pub fn is_plain(path: &str) -> bool {
    let parts = path.strip_prefix('/').filter(|_| !path.contains('\0'));
    parts.is_some_and(|parts| parts.split('/').all(|part| !matches!(part, "" | "." | "..")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(tenant: AccountId) -> MountGrants {
        let grant = |path: &str, accounts, writable| MountGrant { path: path.into(), accounts, writable };
        let only = |account| Grantees::Only(BTreeSet::from([account]));
        MountGrants::new(vec![
            grant("/srv/local", only(AccountId::LOCAL), false),
            grant("/srv/tenant", only(tenant), false),
            grant("/srv/tenant/out", only(tenant), true),
            grant("/srv/all", Grantees::All, false),
        ])
    }

    fn mount(source: &str, writable: bool) -> HostMount {
        HostMount { source: source.to_owned(), target: "/data".to_owned(), writable }
    }

    #[test]
    fn a_mount_is_granted_per_account_and_read_only_unless_said() {
        let (tenant, other) = (AccountId::generate(), AccountId::generate());
        let grants = grants(tenant);
        let may = |account, source: &str, writable| {
            grants.check(account, &[mount(source, writable)]).map_err(|error| error.kind())
        };
        let denied = Err(ErrorKind::Denied);
        for (source, readers) in [
            ("/srv/local", [true, false, false]),
            ("/srv/local/deep/er", [true, false, false]),
            ("/srv/tenant", [false, true, false]),
            ("/srv/tenant/out", [false, true, false]),
            ("/srv/all/x", [true, true, true]),
            ("/srv", [false, false, false]),
            ("/srv/alles", [false, false, false]),
        ] {
            for (account, allowed) in [AccountId::LOCAL, tenant, other].into_iter().zip(readers) {
                assert_eq!(may(account, source, false), if allowed { Ok(()) } else { denied }, "{source}");
                let writable = allowed && source == "/srv/tenant/out";
                assert_eq!(may(account, source, true), if writable { Ok(()) } else { denied }, "{source} rw");
            }
        }
        assert_eq!(
            MountGrants::default().check(AccountId::LOCAL, &[mount("/srv", false)]).map_err(|e| e.kind()),
            denied
        );
    }

    #[test]
    fn sources_that_do_not_say_where_they_lead_are_invalid() {
        let grants = grants(AccountId::generate());
        for source in ["", "srv", "/", "/srv/all/", "/srv/all/../local", "/srv/./all", "//srv", "/srv/all/\0"]
        {
            let error = grants.check(AccountId::LOCAL, &[mount(source, false)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{source:?}");
        }
    }

    #[test]
    fn a_tenant_sees_the_sources_that_it_may_ask_for_and_no_others() {
        let tenant = AccountId::generate();
        let all = [mount("/srv/tenant/a", false), mount("/opt/agents/claude", false)];
        let sources = |account| {
            let mut shown = all.clone();
            grants(tenant).shown(account, &mut shown);
            shown.map(|mount| mount.source)
        };
        assert_eq!(sources(tenant), ["/srv/tenant/a", "hidden"]);
        assert_eq!(sources(AccountId::generate()), ["hidden", "hidden"]);
        assert_eq!(sources(AccountId::LOCAL), ["/srv/tenant/a", "/opt/agents/claude"]);
    }
}
