//! Keys of accounts, and tokens for single ports.
//!
//! A secret is 32 random bytes, shown once and kept nowhere: its SHA-256 is. There is nothing to guess, so nothing slow
//! stands in the way of a guesser. What a key has open ends with the key: see [`KeyWatch`].

mod watch;

pub use watch::KeyWatch;

use crate::{
    Error, Result,
    accounts::AccountCatalog,
    ports::{
        Clock,
        store::{Accounts, KeyHash, KeyLimits},
    },
};
use hmac::{Hmac, KeyInit, Mac};
use jiff::{SignedDuration, Timestamp};
use seawall_api::{
    AccountId, ErrorKind, KeyId, SandboxId,
    account::{ApiKey, KeyScope, LocalPeer},
    http::{CreateKey, NewKey},
};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

const PREFIX: &str = "sw_";
/// Of a secret, to tell keys apart by.
const SHOWN: usize = 11;
/// How long a look at the database is believed. A key that was revoked elsewhere works for so long.
const BELIEVED: Duration = Duration::from_secs(1);
/// Between notes of a key's use.
const NOTED: Duration = Duration::from_secs(60);
const MOST_BELIEVED: usize = 10_000;
/// Keys of an account. Those that are over stay in its list for a day at least, and make room after that.
const LIMITS: KeyLimits = KeyLimits { live: 100, all: 1000, keep_over: Duration::from_secs(24 * 3600) };

/// The caller of a request, with the account that it acts for and its scopes there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub account: AccountId,
    pub caller: Caller,
    pub scopes: BTreeSet<KeyScope>,
    /// The operator acts for `account`, which is not its own.
    pub is_delegated: bool,
}

/// The key or the process that identifies a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    Key(KeyId),
    /// A process at the local socket. It has no key.
    Peer(LocalPeer),
}

impl Identity {
    pub fn of_key(account: AccountId, key: KeyId, scopes: BTreeSet<KeyScope>) -> Identity {
        Identity { account, caller: Caller::Key(key), scopes, is_delegated: false }
    }

    /// The operator at the local socket: a process of the server's user, or of root.
    pub fn of_peer(peer: LocalPeer) -> Identity {
        Identity {
            account: AccountId::LOCAL,
            caller: Caller::Peer(peer),
            scopes: BTreeSet::from([KeyScope::Admin]),
            is_delegated: false,
        }
    }

    /// Whether the caller may see to the server and to other accounts: an admin of the account `local`, acting for itself.
    pub fn is_operator(&self) -> bool {
        self.account == AccountId::LOCAL && self.may(KeyScope::Admin) && !self.is_delegated
    }

    /// Whether the caller is the server's own user on this machine, who can run any process there.
    pub fn is_host_user(&self) -> bool {
        matches!(self.caller, Caller::Peer(_)) && self.is_operator()
    }

    /// The same caller, acting for another account with all rights there.
    pub fn acting_for(&self, account: AccountId) -> Identity {
        let is_delegated = account != self.account;
        Identity { account, is_delegated, scopes: BTreeSet::from([KeyScope::Admin]), ..self.clone() }
    }

    /// Each scope has those below it: admin may run, and run may read.
    pub fn may(&self, scope: KeyScope) -> bool {
        self.scopes.iter().any(|has| *has >= scope)
    }
}

#[derive(Clone)]
pub struct Keys {
    accounts: Arc<dyn Accounts>,
    clock: Arc<dyn Clock>,
    /// Signs tokens. The same for every server of an installation.
    secret: [u8; 32],
    believed: Arc<Mutex<HashMap<KeyHash, Believed>>>,
    /// Tells which accounts are suspended. `None` where there is only the operator's.
    catalog: Option<AccountCatalog>,
    latest: Arc<Mutex<Timestamp>>,
    watched: watch::Watched,
}

struct Believed {
    key: Option<ApiKey>,
    looked: Instant,
    noted: Option<Instant>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

impl Keys {
    pub fn new(accounts: Arc<dyn Accounts>, clock: Arc<dyn Clock>, secret: [u8; 32]) -> Keys {
        Keys {
            accounts,
            clock,
            secret,
            believed: Arc::default(),
            catalog: None,
            latest: Arc::default(),
            watched: watch::Watched::default(),
        }
    }

    /// Refuses the keys and tokens of accounts that are suspended.
    pub fn with_accounts(mut self, catalog: AccountCatalog) -> Keys {
        self.catalog = Some(catalog);
        self
    }

    /// Drops the cached keys of an account that was suspended or deleted here.
    pub fn forget_account(&self, account: AccountId) {
        self.believed().retain(|_, found| found.key.as_ref().is_none_or(|key| key.account_id != account));
    }

    /// An error where the account is suspended.
    pub async fn check_account(&self, account: AccountId) -> Result<()> {
        match &self.catalog {
            Some(catalog) => catalog.refuse_suspended(account).await,
            None => Ok(()),
        }
    }

    pub async fn verify(&self, secret: &str) -> Result<Identity> {
        let hash = hash(secret);
        let key = match self.remembered(&hash) {
            Some(found) => found,
            None => self.look(&hash).await?,
        };
        let key = key.ok_or_else(|| denied("key_unknown", "this key is not known here; check it"))?;
        let (now, latest) = (self.clock.now(), self.latest());
        if key.revoked_at.is_some_and(|at| at <= latest) {
            return Err(denied("key_revoked", "this key was revoked; make a new one"));
        }
        if key.expires_at.is_some_and(|at| at <= now) {
            return Err(denied("key_expired", "this key has expired; make a new one"));
        }
        self.check_account(key.account_id).await?;
        self.note_use(&hash, &key, now);
        Ok(Identity::of_key(key.account_id, key.id, key.scopes))
    }

    /// The latest time that the clock has shown: one that steps back makes no revoked key good again.
    fn latest(&self) -> Timestamp {
        let now = self.clock.now();
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = (*latest).max(now);
        *latest
    }

    fn believed(&self) -> std::sync::MutexGuard<'_, HashMap<KeyHash, Believed>> {
        self.believed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remembered(&self, hash: &KeyHash) -> Option<Option<ApiKey>> {
        let believed = self.believed();
        let found = believed.get(hash).filter(|found| found.looked.elapsed() < BELIEVED)?;
        Some(found.key.clone())
    }

    async fn look(&self, hash: &KeyHash) -> Result<Option<ApiKey>> {
        let key = self.accounts.find_key(hash).await?;
        let mut believed = self.believed();
        if believed.len() >= MOST_BELIEVED {
            believed.clear();
        }
        let noted = believed.get(hash).and_then(|found| found.noted);
        // Guesses are not remembered: they would push out what is good.
        if key.is_some() {
            believed.insert(*hash, Believed { key: key.clone(), looked: Instant::now(), noted });
        }
        Ok(key)
    }

    /// Now and then: nobody waits for it.
    fn note_use(&self, hash: &KeyHash, key: &ApiKey, now: Timestamp) {
        let mut believed = self.believed();
        let Some(found) = believed.get_mut(hash) else { return };
        if found.noted.is_some_and(|noted| noted.elapsed() < NOTED) {
            return;
        }
        found.noted = Some(Instant::now());
        let (accounts, account, id) = (self.accounts.clone(), key.account_id, key.id);
        tokio::spawn(async move {
            if let Err(error) = accounts.touch_key(account, id, now).await {
                tracing::warn!(key = %id, error = %error.chain(), "the use of a key was not noted");
            }
        });
    }

    pub async fn create(&self, account: AccountId, ask: &CreateKey) -> Result<NewKey> {
        self.create_within(account, ask, &LIMITS).await
    }

    async fn create_within(&self, account: AccountId, ask: &CreateKey, limits: &KeyLimits) -> Result<NewKey> {
        let now = self.clock.now();
        if ask.name.trim().is_empty() || ask.name.len() > 200 {
            return Err(Error::invalid("a key needs a name of 1 to 200 bytes"));
        }
        if ask.scopes.is_empty() {
            return Err(Error::invalid("a key needs a scope: read, run or admin"));
        }
        if ask.expires_at.is_some_and(|at| at <= now) {
            return Err(Error::invalid("`expires_at` is over already"));
        }
        let secret = new_secret()?;
        let key = ApiKey {
            id: KeyId::generate(),
            account_id: account,
            name: ask.name.clone(),
            prefix: secret[..SHOWN].to_owned(),
            scopes: ask.scopes.clone(),
            created_at: now,
            expires_at: ask.expires_at,
            revoked_at: None,
            last_used_at: None,
        };
        self.accounts.add_key(&key, &hash(&secret), limits).await?;
        tracing::info!(%account, key = %key.id, prefix = key.prefix, "key made");
        Ok(NewKey { key, secret, replaces: None })
    }

    /// All of them, revoked ones too, oldest first.
    pub async fn list(&self, account: AccountId) -> Result<Vec<ApiKey>> {
        self.accounts.keys(account).await
    }

    pub async fn revoke(&self, account: AccountId, key: KeyId) -> Result<()> {
        self.revoke_at(account, key, self.clock.now()).await
    }

    async fn revoke_at(&self, account: AccountId, key: KeyId, at: Timestamp) -> Result<()> {
        self.find(account, key).await?;
        self.accounts.revoke_key(account, key, at).await?;
        // Here at once; elsewhere within a moment.
        forget_key(&self.believed, key);
        if at <= self.clock.now() {
            self.watched.end(|watched, _| watched == key);
        }
        tracing::info!(%account, %key, %at, "key revoked");
        Ok(())
    }

    /// Ends what keys of an account have open, here and now: for an account that is suspended or deleted.
    pub fn end_account(&self, account: AccountId) {
        self.believed().retain(|_, found| found.key.as_ref().is_none_or(|found| found.account_id != account));
        self.watched.end(|_, of| of == account);
    }

    /// Tells when a key is not good any more, for as long as what came of it is open. Revocations that another process made
    /// count within a second, and so does a key's end.
    /// `None` where the caller has no key.
    pub fn watch(&self, identity: &Identity) -> Option<KeyWatch> {
        let Caller::Key(key) = identity.caller else { return None };
        let account = if identity.is_delegated { AccountId::LOCAL } else { identity.account };
        let believed = self.believed.clone();
        let forget = move |key: KeyId| forget_key(&believed, key);
        Some(self.watched.watch(key, account, &self.accounts, &self.clock, forget))
    }

    async fn find(&self, account: AccountId, key: KeyId) -> Result<ApiKey> {
        let found = self.accounts.keys(account).await?.into_iter().find(|found| found.id == key);
        found.ok_or_else(|| Error::not_found(format!("there is no key {key}")))
    }

    /// A new secret in the place of an old one, which works on for a while.
    pub async fn rotate(&self, account: AccountId, key: KeyId, overlap: Duration) -> Result<NewKey> {
        let old = self.find(account, key).await?;
        let now = self.clock.now();
        if old.revoked_at.is_some_and(|at| at <= now) {
            return Err(Error::conflict("this key was revoked; make a new one"));
        }
        let ask = CreateKey { name: old.name, scopes: old.scopes, expires_at: old.expires_at };
        // The old one goes, at once or soon.
        let limits = KeyLimits { live: LIMITS.live + 1, ..LIMITS };
        let new = self.create_within(account, &ask, &limits).await?;
        let overlap = SignedDuration::try_from(overlap).unwrap_or(SignedDuration::MAX);
        let until = now.saturating_add(overlap).unwrap_or(Timestamp::MAX);
        self.revoke_at(account, key, until).await?;
        Ok(NewKey { replaces: Some(key), ..new })
    }

    /// P7: for one port of one sandbox.
    pub fn port_token(
        &self,
        account: AccountId,
        sandbox: SandboxId,
        port: u16,
        expires_at: Timestamp,
    ) -> String {
        let expires = expires_at.as_second();
        let mac = self.mac(account, sandbox, port, expires).finalize().into_bytes();
        spelled(account, expires, &mac)
    }

    /// Whose a token says it is. Not checked.
    pub fn account_of(token: &str) -> Option<AccountId> {
        token.strip_prefix("swp_")?.split('_').next()?.parse().ok()
    }

    /// Whose token it is.
    pub fn check_port_token(&self, token: &str, sandbox: SandboxId, port: u16) -> Result<AccountId> {
        let invalid = || denied("token_invalid", "this token is not for this port; ask for a new one");
        let rest = token.strip_prefix("swp_").ok_or_else(invalid)?;
        let mut parts = rest.split('_');
        let (Some(account), Some(expires), Some(mac), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(invalid());
        };
        let account: AccountId = account.parse().map_err(|_| invalid())?;
        let expires: i64 = expires.parse().map_err(|_| invalid())?;
        let mac = unhex(mac).ok_or_else(invalid)?;
        // In constant time.
        self.mac(account, sandbox, port, expires).verify_slice(&mac).map_err(|_| invalid())?;
        // Numbers and digits can be written in several ways, and a token in one.
        if spelled(account, expires, &mac) != token {
            return Err(invalid());
        }
        match expires > self.clock.now().as_second() {
            true => Ok(account),
            false => Err(denied("token_expired", "this token has expired; ask for a new one")),
        }
    }

    fn mac(&self, account: AccountId, sandbox: SandboxId, port: u16, expires: i64) -> Hmac<Sha256> {
        // A key of 32 bytes is one of any length, which HMAC takes.
        let mut key = [0; 64];
        key[..32].copy_from_slice(&self.secret);
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&key.into());
        mac.update(format!("port {account} {sandbox} {port} {expires}").as_bytes());
        mac
    }
}

/// A key is looked up again when it is used next.
fn forget_key(believed: &Mutex<HashMap<KeyHash, Believed>>, key: KeyId) {
    let mut believed = believed.lock().unwrap_or_else(PoisonError::into_inner);
    believed.retain(|_, found| found.key.as_ref().is_none_or(|found| found.id != key));
}

/// A token of a port, in the one way in which it is written.
fn spelled(account: AccountId, expires: i64, mac: &[u8]) -> String {
    format!("swp_{}_{expires}_{}", account.as_uuid().simple(), hex(mac))
}

/// `sw_` and 64 hex digits.
fn new_secret() -> Result<String> {
    Ok(format!("{PREFIX}{}", hex(&random()?)))
}

/// 32 random bytes, for signing.
pub fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|error| Error::internal(format!("the kernel gives no randomness: {error}")))?;
    Ok(bytes)
}

pub fn hash(secret: &str) -> KeyHash {
    Sha256::digest(secret.as_bytes()).into()
}

fn denied(code: &'static str, message: &str) -> Error {
    Error::new(ErrorKind::Denied, message).with_code(code)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(byte).collect()
}
