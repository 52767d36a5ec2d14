//! Keys and tokens: who asks, what they may, and for how long.

use jiff::Timestamp;
use seawall_api::{
    AccountId, ErrorKind, KeyId, SandboxId,
    account::{Account, ApiKey, KeyScope},
    http::{CreateKey, NewKey},
};
use seawall_core::{
    Error, Result,
    keys::{Caller, Identity, Keys, hash, random},
    ports::{Clock, store::Stores},
    testing::{ManualClock, MemoryStore},
};
use serde_json::Map;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::time::sleep;

const SECRET: [u8; 32] = [7; 32];
const MINUTE: Duration = Duration::from_secs(60);

struct World {
    keys: Keys,
    stores: Stores,
    clock: ManualClock,
    me: AccountId,
    other: AccountId,
}

impl World {
    async fn new() -> World {
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        let stores = MemoryStore::with_clock(Arc::new(clock.clone())).stores();
        let [me, other] = [AccountId::generate(), AccountId::generate()];
        for id in [me, other] {
            let account = Account::new(id, "a".to_owned(), Map::new(), clock.now());
            stores.accounts.create(&account).await.unwrap();
        }
        let keys = Keys::new(stores.accounts.clone(), Arc::new(clock.clone()), SECRET);
        World { keys, stores, clock, me, other }
    }

    /// Another server on the same database.
    fn another(&self, secret: [u8; 32]) -> Keys {
        Keys::new(self.stores.accounts.clone(), Arc::new(self.clock.clone()), secret)
    }

    async fn key(&self) -> NewKey {
        self.keys.create(self.me, &ask()).await.unwrap()
    }

    async fn stored(&self, key: KeyId) -> ApiKey {
        self.keys.list(self.me).await.unwrap().into_iter().find(|found| found.id == key).unwrap()
    }

    /// By all clocks.
    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        sleep(time).await;
    }
}

fn ask() -> CreateKey {
    CreateKey { name: "laptop".to_owned(), scopes: [KeyScope::Run].into(), expires_at: None }
}

#[track_caller]
fn error<T>(result: Result<T>) -> Error {
    match result {
        Ok(_) => panic!("it succeeded, though it must not"),
        Err(error) => error,
    }
}

#[track_caller]
fn assert_denied<T>(result: Result<T>, code: &str) {
    let denied = error(result);
    assert_eq!((denied.kind(), denied.code()), (ErrorKind::Denied, code), "{denied}");
    // It says what to do.
    assert!(denied.to_string().contains(';'), "{denied}");
}

#[tokio::test(start_paused = true)]
async fn c7_a_key_says_whose_it_is_and_what_it_may() {
    let world = World::new().await;
    let scopes: BTreeSet<KeyScope> = [KeyScope::Read, KeyScope::Run].into();
    let made = world.keys.create(world.me, &CreateKey { scopes: scopes.clone(), ..ask() }).await.unwrap();
    let expected = Identity::of_key(world.me, made.key.id, scopes);
    // Also from memory, also elsewhere.
    for keys in [&world.keys, &world.keys, &world.another(SECRET)] {
        assert_eq!(keys.verify(&made.secret).await.unwrap(), expected);
    }
    let theirs = world.keys.create(world.other, &ask()).await.unwrap();
    assert_eq!(world.keys.verify(&theirs.secret).await.unwrap().account, world.other);
}

#[tokio::test(start_paused = true)]
async fn c7_an_unknown_key_is_nobodys() {
    let world = World::new().await;
    let made = world.key().await;
    let cut = &made.secret[..made.secret.len() - 1];
    for unknown in ["", "sw_", "nonsense", cut, &made.key.prefix, &format!("{} ", made.secret)] {
        assert_denied(world.keys.verify(unknown).await, "key_unknown");
    }
    // One that is made later is known at once.
    let later = world.key().await;
    world.keys.verify(&later.secret).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c7_a_revoked_key_is_refused_here_at_once_and_elsewhere_soon() {
    let world = World::new().await;
    let (made, stays) = (world.key().await, world.key().await);
    let elsewhere = world.another(SECRET);
    for keys in [&world.keys, &elsewhere] {
        keys.verify(&made.secret).await.unwrap();
    }
    world.keys.revoke(world.me, made.key.id).await.unwrap();
    assert_denied(world.keys.verify(&made.secret).await, "key_revoked");
    sleep(Duration::from_millis(1001)).await;
    assert_denied(elsewhere.verify(&made.secret).await, "key_revoked");
    // Only that one, and for good.
    world.keys.verify(&stays.secret).await.unwrap();
    world.keys.revoke(world.me, made.key.id).await.unwrap();
    assert_denied(world.keys.verify(&made.secret).await, "key_revoked");
}

#[tokio::test(start_paused = true)]
async fn c7_a_key_expires_in_time_also_where_it_is_remembered() {
    let world = World::new().await;
    let expires_at = Some(world.clock.now() + MINUTE);
    let made = world.keys.create(world.me, &CreateKey { expires_at, ..ask() }).await.unwrap();
    assert_eq!(made.key.expires_at, expires_at);
    world.clock.advance(Duration::from_secs(59));
    world.keys.verify(&made.secret).await.unwrap();
    // No time passes in which it would be forgotten.
    world.clock.advance(Duration::from_secs(1));
    assert_denied(world.keys.verify(&made.secret).await, "key_expired");
    assert_denied(world.another(SECRET).verify(&made.secret).await, "key_expired");
}

#[tokio::test(start_paused = true)]
async fn c7_a_revoked_key_stays_so_when_the_clock_steps_back() {
    let world = World::new().await;
    let (made, stays) = (world.key().await, world.key().await);
    let then = world.clock.now();
    world.pass(MINUTE * 60).await;
    world.keys.revoke(world.me, made.key.id).await.unwrap();
    assert_denied(world.keys.verify(&made.secret).await, "key_revoked");
    world.clock.set(then);
    assert_denied(world.keys.verify(&made.secret).await, "key_revoked");
    world.keys.verify(&stays.secret).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c7_keys_that_make_no_sense_are_not_made() {
    let world = World::new().await;
    let now = world.clock.now();
    for bad in [
        CreateKey { name: String::new(), ..ask() },
        CreateKey { name: " \t".to_owned(), ..ask() },
        CreateKey { name: "x".repeat(201), ..ask() },
        CreateKey { scopes: BTreeSet::new(), ..ask() },
        CreateKey { expires_at: Some(now), ..ask() },
        CreateKey { expires_at: Some(Timestamp::UNIX_EPOCH), ..ask() },
    ] {
        assert_eq!(error(world.keys.create(world.me, &bad).await).kind(), ErrorKind::Invalid, "{bad:?}");
    }
    assert!(world.keys.list(world.me).await.unwrap().is_empty());
    let nobody = world.keys.create(AccountId::generate(), &ask()).await;
    assert_eq!(error(nobody).kind(), ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn c7_keys_are_listed_and_revoked_by_their_account_alone() {
    let world = World::new().await;
    let first = world.key().await;
    world.pass(MINUTE).await;
    let second = world.key().await;
    world.keys.revoke(world.me, first.key.id).await.unwrap();
    let listed: Vec<_> = world.keys.list(world.me).await.unwrap();
    let told: Vec<_> = listed.iter().map(|key| (key.id, key.revoked_at)).collect();
    assert_eq!(told, [(first.key.id, Some(world.clock.now())), (second.key.id, None)]);
    assert!(world.keys.list(world.other).await.unwrap().is_empty());
    for refused in [
        world.keys.revoke(world.other, second.key.id).await,
        world.keys.rotate(world.other, second.key.id, MINUTE).await.map(drop),
        world.keys.revoke(world.me, KeyId::generate()).await,
        world.keys.rotate(world.me, KeyId::generate(), MINUTE).await.map(drop),
    ] {
        assert_eq!(error(refused).kind(), ErrorKind::NotFound);
    }
    world.keys.verify(&second.secret).await.unwrap();
    assert_eq!(world.keys.list(world.me).await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn c7_a_rotated_key_works_on_for_a_while() {
    let world = World::new().await;
    let expires_at = Some(world.clock.now() + MINUTE * 100);
    let old = world.keys.create(world.me, &CreateKey { expires_at, ..ask() }).await.unwrap();
    let elsewhere = world.another(SECRET);
    elsewhere.verify(&old.secret).await.unwrap();
    let new = world.keys.rotate(world.me, old.key.id, MINUTE).await.unwrap();
    assert_eq!(new.replaces, Some(old.key.id));
    assert!(new.secret != old.secret && new.key.id != old.key.id);
    let kept = |key: &ApiKey| (key.name.clone(), key.scopes.clone(), key.expires_at);
    assert_eq!(kept(&new.key), kept(&old.key));
    world.pass(Duration::from_secs(59)).await;
    for secret in [&old.secret, &new.secret] {
        for keys in [&world.keys, &elsewhere] {
            keys.verify(secret).await.unwrap();
        }
    }
    // Whether or not it is remembered.
    world.clock.advance(Duration::from_secs(1));
    for keys in [&world.keys, &elsewhere] {
        assert_denied(keys.verify(&old.secret).await, "key_revoked");
        assert_eq!(keys.verify(&new.secret).await.unwrap().caller, Caller::Key(new.key.id));
    }
    assert_eq!(error(world.keys.rotate(world.me, old.key.id, MINUTE).await).kind(), ErrorKind::Conflict);
}

#[tokio::test(start_paused = true)]
async fn c7_without_an_overlap_a_rotated_key_is_over_at_once() {
    let world = World::new().await;
    let old = world.key().await;
    world.keys.verify(&old.secret).await.unwrap();
    let new = world.keys.rotate(world.me, old.key.id, Duration::ZERO).await.unwrap();
    assert_denied(world.keys.verify(&old.secret).await, "key_revoked");
    world.keys.verify(&new.secret).await.unwrap();
    // The longest is as good as for ever.
    world.keys.rotate(world.me, new.key.id, Duration::MAX).await.unwrap();
    world.keys.verify(&new.secret).await.unwrap();
}

/// Somebody has found it: it must not work on because a while was left.
#[tokio::test(start_paused = true)]
async fn c7_a_key_that_is_being_rotated_can_be_revoked_at_once() {
    let world = World::new().await;
    let old = world.key().await;
    let new = world.keys.rotate(world.me, old.key.id, MINUTE * 60).await.unwrap();
    world.keys.verify(&old.secret).await.unwrap();
    world.keys.revoke(world.me, old.key.id).await.unwrap();
    assert_denied(world.keys.verify(&old.secret).await, "key_revoked");
    world.keys.verify(&new.secret).await.unwrap();
}

#[test]
fn c7_each_scope_has_those_below_it() {
    let may = |scopes: &[KeyScope]| {
        let scopes = scopes.iter().copied().collect();
        let identity = Identity::of_key(AccountId::LOCAL, KeyId::generate(), scopes);
        [KeyScope::Read, KeyScope::Run, KeyScope::Admin].map(|scope| identity.may(scope))
    };
    for (scopes, expected) in [
        (&[][..], [false, false, false]),
        (&[KeyScope::Read][..], [true, false, false]),
        (&[KeyScope::Run][..], [true, true, false]),
        (&[KeyScope::Admin][..], [true, true, true]),
        (&[KeyScope::Read, KeyScope::Admin][..], [true, true, true]),
    ] {
        assert_eq!(may(scopes), expected, "{scopes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn c7_secrets_are_nowhere_but_in_the_answer() {
    let world = World::new().await;
    let (made, again) = (world.key().await, world.key().await);
    let digits = made.secret.strip_prefix("sw_").unwrap();
    assert!(digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{}", made.secret);
    assert_ne!(made.secret, again.secret);
    // What tells keys apart is not enough to guess the rest.
    assert_eq!((made.key.prefix.as_str(), made.key.prefix.len()), (&made.secret[..11], 11));
    let stored = world.stored(made.key.id).await;
    assert_eq!(stored, made.key);
    let rest = &made.secret[11..];
    let json = serde_json::to_string(&stored).unwrap();
    assert!(!json.contains(rest) && !format!("{stored:?} {:?}", world.keys).contains(rest));
    // It is found by its hash, and not by itself.
    let accounts = &world.stores.accounts;
    assert_eq!(accounts.find_key(&hash(&made.secret)).await.unwrap(), Some(stored));
    assert_eq!(accounts.find_key(&hash(digits)).await.unwrap(), None);
    assert_ne!(hash(&made.secret)[..], made.secret.as_bytes()[..32]);
    assert_ne!(random().unwrap(), random().unwrap());
}

#[tokio::test(start_paused = true)]
async fn c7_the_use_of_a_key_is_noted_now_and_then() {
    let world = World::new().await;
    let made = world.key().await;
    assert_eq!(world.stored(made.key.id).await.last_used_at, None);
    let used = async || {
        world.keys.verify(&made.secret).await.unwrap();
        // Nobody waits for it.
        sleep(Duration::from_millis(1)).await;
        world.stored(made.key.id).await.last_used_at
    };
    let first = world.clock.now();
    assert_eq!(used().await, Some(first));
    world.pass(MINUTE / 2).await;
    assert_eq!(used().await, Some(first));
    world.pass(MINUTE / 2).await;
    assert_eq!(used().await, Some(world.clock.now()));
    // What is refused is no use.
    world.keys.revoke(world.me, made.key.id).await.unwrap();
    let last = world.stored(made.key.id).await.last_used_at;
    world.pass(MINUTE * 2).await;
    assert_denied(world.keys.verify(&made.secret).await, "key_revoked");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(world.stored(made.key.id).await.last_used_at, last);
}

#[tokio::test(start_paused = true)]
async fn p7_a_token_is_for_one_port_of_one_sandbox() {
    let world = World::new().await;
    let (keys, id) = (&world.keys, SandboxId::generate());
    let token = keys.port_token(world.me, id, 8080, world.clock.now() + MINUTE);
    // Any server of the installation takes it.
    for keys in [keys, &world.another(SECRET)] {
        assert_eq!(keys.check_port_token(&token, id, 8080).unwrap(), world.me);
    }
    assert_denied(keys.check_port_token(&token, id, 8081), "token_invalid");
    assert_denied(keys.check_port_token(&token, SandboxId::generate(), 8080), "token_invalid");
    assert_denied(world.another([8; 32]).check_port_token(&token, id, 8080), "token_invalid");
    let theirs = keys.port_token(world.other, id, 8080, world.clock.now() + MINUTE);
    assert_eq!(keys.check_port_token(&theirs, id, 8080).unwrap(), world.other);
}

#[tokio::test(start_paused = true)]
async fn p7_a_token_expires() {
    let world = World::new().await;
    let id = SandboxId::generate();
    let token = world.keys.port_token(world.me, id, 80, world.clock.now() + MINUTE);
    world.clock.advance(Duration::from_secs(59));
    world.keys.check_port_token(&token, id, 80).unwrap();
    world.clock.advance(Duration::from_secs(1));
    assert_denied(world.keys.check_port_token(&token, id, 80), "token_expired");
    // Of one that is not for this port nothing more is said.
    assert_denied(world.keys.check_port_token(&token, id, 81), "token_invalid");
}

#[tokio::test(start_paused = true)]
async fn p7_a_token_that_was_changed_is_none() {
    let world = World::new().await;
    let id = SandboxId::generate();
    let expires = world.clock.now() + MINUTE;
    let token = world.keys.port_token(world.me, id, 80, expires);
    let [_, account, time, mac] = token.split('_').collect::<Vec<_>>()[..] else { panic!("{token}") };
    let other = world.other.as_uuid().simple().to_string();
    let later = (expires + MINUTE).as_second().to_string();
    let flipped: String = mac.chars().rev().collect();
    let cut = &mac[..mac.len() - 2];
    for changed in [
        String::new(),
        "swp_".to_owned(),
        "swp___".to_owned(),
        format!("swp_{account}"),
        format!("swp_{account}_{time}"),
        format!("swp_{account}_{time}_"),
        format!("{account}_{time}_{mac}"),
        format!("sw_{account}_{time}_{mac}"),
        format!("swp_{other}_{time}_{mac}"),
        format!("swp_{account}_{later}_{mac}"),
        format!("swp_{account}_never_{mac}"),
        format!("swp_nobody_{time}_{mac}"),
        format!("swp_{account}_{time}_{flipped}"),
        format!("swp_{account}_{time}_{cut}"),
        format!("swp_{account}_{time}_{mac}00"),
        format!("swp_{account}_{time}_{mac}0"),
        format!("swp_{account}_{time}_{mac}_"),
        format!("swp_{account}_{time}_zz{cut}"),
        format!("swp_{account}_{time}_é{}", &mac[1..]),
    ] {
        assert_denied(world.keys.check_port_token(&changed, id, 80), "token_invalid");
    }
    world.keys.check_port_token(&token, id, 80).unwrap();
}
