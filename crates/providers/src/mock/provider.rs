//! The provider contract, on a map.

use super::{
    files::FileTree,
    guest::MockGuest,
    lock,
    script::{self, Commands, MockCall, Script},
};
use async_trait::async_trait;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    sandbox::{Egress, EndReason, SandboxSpec},
};
use seawall_core::{
    Error, Result,
    ports::{
        BoxEvent, BoxEvents, BoxInfo, BoxState, Capabilities, LimitKinds, Provider, VolumeInfo, Volumes,
    },
};
use seawall_wire::Duplex;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::broadcast;

/// Changes that a slow watcher may lag behind before its stream breaks.
const BACKLOG: usize = 1024;

/// The calls of the provider that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MockOp {
    Create,
    Start,
    Stop,
    Remove,
    Get,
    List,
    Watch,
    Connect,
}

#[derive(Debug)]
struct MockBox {
    spec: SandboxSpec,
    created_at: Timestamp,
    state: BoxState,
    reason: Option<EndReason>,
    guest: Option<Arc<MockGuest>>,
}

#[derive(Debug, Default)]
struct State {
    boxes: BTreeMap<SandboxId, MockBox>,
    /// Outlive their boxes.
    volumes: BTreeMap<String, Arc<Mutex<FileTree>>>,
    failures: Vec<(MockOp, ErrorKind)>,
    commands: Commands,
    /// The images that boxes can have. Without one the provider takes none.
    images: BTreeSet<String>,
}

impl State {
    /// Whether a box has a volume.
    fn uses(&self, volume: &str) -> bool {
        self.boxes.iter().any(|(id, found)| found.spec.volume_of(*id) == volume)
    }
}

/// What a machine is to a real provider: it outlives the provider object.
#[derive(Debug)]
pub(super) struct Substrate {
    state: Mutex<State>,
    /// Sent to under the lock of `state`, so that a watcher misses nothing and sees no change twice.
    changes: broadcast::Sender<BoxEvent>,
}

impl Substrate {
    pub(super) fn script(&self, call: &MockCall) -> Option<Script> {
        let own = lock(&self.state).commands.find(call.args.first()?);
        script::script(own, call)
    }

    /// The guest of a box went, by itself or by force.
    pub(super) fn ended(&self, id: SandboxId, reason: EndReason) {
        let mut state = lock(&self.state);
        let Some(found) = state.boxes.get_mut(&id) else { return };
        let Some(guest) = found.guest.take() else { return };
        guest.die();
        found.state = BoxState::Stopped;
        found.reason = Some(reason);
        let info = info(id, found);
        self.tell(BoxEvent::Is(Box::new(info)));
    }

    fn tell(&self, event: BoxEvent) {
        // Without a watcher there is nobody to tell.
        let _ = self.changes.send(event);
    }
}

/// Clones share one substrate.
#[derive(Debug, Clone)]
pub struct MockProvider {
    substrate: Arc<Substrate>,
}

impl Default for MockProvider {
    fn default() -> Self {
        MockProvider::new()
    }
}

impl MockProvider {
    pub fn new() -> MockProvider {
        let substrate = Substrate { state: Mutex::default(), changes: broadcast::Sender::new(BACKLOG) };
        MockProvider { substrate: Arc::new(substrate) }
    }

    /// The provider of another host process on the same substrate.
    pub fn reopen(&self) -> MockProvider {
        self.clone()
    }

    /// The next call of `op` fails. Several are met in the order in which they were set.
    pub fn fail_next(&self, op: MockOp, kind: ErrorKind) {
        lock(&self.substrate.state).failures.push((op, kind));
    }

    /// Lets boxes have an image of this name.
    pub fn add_image(&self, name: &str) {
        lock(&self.substrate.state).images.insert(name.to_owned());
    }

    /// What a command does, in every box. It goes before a built-in one of that name.
    pub fn on_command(&self, name: &str, command: impl Fn(&MockCall) -> Script + Send + Sync + 'static) {
        lock(&self.substrate.state).commands.add(name, command);
    }

    /// The guest of a box dies: connections are cut and processes gone.
    pub fn crash(&self, id: SandboxId) {
        self.substrate.ended(id, EndReason::Failed("guest_died".into()));
    }

    /// The guest of a box ends it by itself, as one does that nobody looks after when its time is over.
    pub fn end_itself(&self, id: SandboxId, reason: EndReason) {
        self.substrate.ended(id, reason);
    }

    /// How many processes run in a box.
    pub fn running(&self, id: SandboxId) -> usize {
        self.guest(id).map_or(0, |guest| guest.running())
    }

    fn guest(&self, id: SandboxId) -> Option<Arc<MockGuest>> {
        lock(&self.substrate.state).boxes.get(&id)?.guest.clone()
    }

    fn meet(&self, op: MockOp) -> Result<()> {
        let mut state = lock(&self.substrate.state);
        match state.failures.iter().position(|(failing, _)| *failing == op) {
            Some(index) => {
                let (_, kind) = state.failures.remove(index);
                Err(Error::new(kind, format!("{op:?} fails because a test said so")))
            }
            None => Ok(()),
        }
    }

    /// Ends the processes, then the guest. Nothing where it does not run.
    async fn halt(&self, id: SandboxId) {
        let guest = self.guest(id);
        if let Some(guest) = guest {
            guest.end_processes().await;
            self.substrate.ended(id, EndReason::Stopped);
        }
    }
}

fn info(id: SandboxId, found: &MockBox) -> BoxInfo {
    BoxInfo {
        id,
        state: found.state,
        reason: found.reason.clone(),
        spec: found.spec.clone(),
        created_at: found.created_at,
        pid: None,
        volume: format!("mock:{}", found.spec.volume_of(id)),
        limits: found.spec.limits,
        egress: Egress::None,
    }
}

fn missing(id: SandboxId) -> Error {
    Error::not_found(format!("no box for sandbox {id}; create it first"))
}

fn check(spec: &SandboxSpec, images: &BTreeSet<String>) -> Result<()> {
    if !spec.mounts.is_empty() {
        return Err(Error::new(ErrorKind::Unsupported, "the mock provider mounts nothing; leave mounts out"));
    }
    if let Some(image) = spec.image.as_ref().filter(|image| !images.contains(*image)) {
        let message = format!("the mock provider takes no image (`{image}`); leave it out");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if spec.user.is_some() {
        let message = "the mock provider has no users; leave the user out";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let limits = spec.limits.named();
    if !limits.is_empty() {
        let message = format!("the mock provider enforces no limits ({})", limits.join(", "));
        return Err(Error::new(ErrorKind::LimitUnenforceable, message));
    }
    Ok(())
}

#[async_trait]
impl Provider for MockProvider {
    fn name(&self) -> &'static str {
        "mock"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: true,
            durable: true,
            programs: false,
            terminals: false,
            tunnels: false,
            file_watch: false,
            file_meta: false,
            images: !lock(&self.substrate.state).images.is_empty(),
            users: false,
            pause: false,
            snapshot: false,
            fork: false,
            gpu: false,
            transparent_egress: false,
            limits: LimitKinds::default(),
        }
    }

    async fn prepare(&self, spec: &SandboxSpec, _account: AccountId) -> Result<()> {
        check(spec, &lock(&self.substrate.state).images)
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec, _account: AccountId) -> Result<BoxInfo> {
        self.meet(MockOp::Create)?;
        let mut state = lock(&self.substrate.state);
        check(spec, &state.images)?;
        if let Some(found) = state.boxes.get(&id) {
            return match found.spec == *spec {
                true => Ok(info(id, found)),
                false => {
                    let message = format!("sandbox {id} has a box of another spec; remove it first");
                    Err(Error::conflict(message))
                }
            };
        }
        let made = MockBox {
            spec: spec.clone(),
            created_at: Timestamp::now(),
            state: BoxState::Created,
            reason: None,
            guest: None,
        };
        let info = info(id, &made);
        state.boxes.insert(id, made);
        state.volumes.entry(spec.volume_of(id)).or_default();
        self.substrate.tell(BoxEvent::Is(Box::new(info.clone())));
        Ok(info)
    }

    async fn start(&self, id: SandboxId) -> Result<BoxInfo> {
        self.meet(MockOp::Start)?;
        let mut state = lock(&self.substrate.state);
        let State { boxes, volumes, .. } = &mut *state;
        let found = boxes.get_mut(&id).ok_or_else(|| missing(id))?;
        if found.guest.is_none() {
            let substrate = Arc::downgrade(&self.substrate);
            let files = volumes.entry(found.spec.volume_of(id)).or_default().clone();
            let guest = MockGuest::new(id, found.spec.clone(), files, substrate);
            found.guest = Some(Arc::new(guest));
            found.state = BoxState::Running;
            found.reason = None;
            self.substrate.tell(BoxEvent::Is(Box::new(info(id, found))));
        }
        Ok(info(id, found))
    }

    async fn stop(&self, id: SandboxId, _grace: Duration) -> Result<()> {
        self.meet(MockOp::Stop)?;
        if !lock(&self.substrate.state).boxes.contains_key(&id) {
            return Err(missing(id));
        }
        self.halt(id).await;
        Ok(())
    }

    async fn has_volume(&self, name: &str) -> Result<bool> {
        Ok(lock(&self.substrate.state).volumes.contains_key(name))
    }

    async fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        let state = lock(&self.substrate.state);
        let info = |name: &String| {
            let (place, in_use) = (format!("mock:{name}"), state.uses(name));
            VolumeInfo { name: name.clone(), place, in_use, bytes: 0 }
        };
        Ok(state.volumes.keys().map(info).collect())
    }

    async fn remove_volume(&self, name: &str) -> Result<()> {
        let mut state = lock(&self.substrate.state);
        if state.uses(name) {
            return Err(Error::conflict(format!("a sandbox uses the volume {name}")));
        }
        match state.volumes.remove(name) {
            Some(_) => Ok(()),
            None => Err(Error::not_found(format!("there is no volume {name}"))),
        }
    }

    async fn remove(&self, id: SandboxId, volumes: Volumes) -> Result<()> {
        self.meet(MockOp::Remove)?;
        self.halt(id).await;
        let mut state = lock(&self.substrate.state);
        if volumes == Volumes::Delete {
            state.volumes.remove(&id.to_string());
        }
        if let Some(gone) = state.boxes.remove(&id) {
            // A start may have come between.
            if let Some(guest) = gone.guest {
                guest.die();
            }
            self.substrate.tell(BoxEvent::Gone(id));
        }
        Ok(())
    }

    async fn get(&self, id: SandboxId) -> Result<BoxInfo> {
        self.meet(MockOp::Get)?;
        let state = lock(&self.substrate.state);
        state.boxes.get(&id).map(|found| info(id, found)).ok_or_else(|| missing(id))
    }

    async fn list(&self) -> Result<Vec<BoxInfo>> {
        self.meet(MockOp::List)?;
        let state = lock(&self.substrate.state);
        Ok(state.boxes.iter().map(|(id, found)| info(*id, found)).collect())
    }

    async fn watch(&self) -> Result<BoxEvents> {
        self.meet(MockOp::Watch)?;
        let (present, changes) = {
            let state = lock(&self.substrate.state);
            let present: Vec<_> = state.boxes.iter().map(|(id, found)| info(*id, found)).collect();
            (present, self.substrate.changes.subscribe())
        };
        let present = present.into_iter().map(|info| BoxEvent::Is(Box::new(info)));
        let present = present.chain([BoxEvent::Ready]).map(Ok);
        Ok(stream::iter(present).chain(follow(changes)).boxed())
    }

    async fn connect(&self, id: SandboxId) -> Result<Box<dyn Duplex>> {
        self.meet(MockOp::Connect)?;
        let guest = {
            let state = lock(&self.substrate.state);
            state.boxes.get(&id).ok_or_else(|| missing(id))?.guest.clone()
        };
        match guest {
            Some(guest) => Ok(Box::new(guest.connect())),
            None => {
                let message = format!("sandbox {id} does not run; start it first");
                Err(Error::new(ErrorKind::Stopped, message))
            }
        }
    }
}

/// Each change; a watcher that fell behind is told so, and its stream ends.
fn follow(changes: broadcast::Receiver<BoxEvent>) -> impl futures::Stream<Item = Result<BoxEvent>> + Send {
    stream::unfold(Some(changes), |changes| async move {
        let mut changes = changes?;
        match changes.recv().await {
            Ok(event) => Some((Ok(event), Some(changes))),
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                let message = format!("{missed} changes were missed; watch again");
                Some((Err(Error::unavailable(message)), None))
            }
            Err(broadcast::error::RecvError::Closed) => None,
        }
    })
}
