//! The service with everything around it at hand: its provider, its records, its clock, its faults.

use bytes::Bytes;
use seawall_api::{
    ErrorKind, SandboxId,
    exec::ExitStatus,
    files::{FileRef, WriteFile, WriteMode},
    sandbox::{SandboxSpec, SandboxState},
};
use seawall_core::{
    Error, ExecOutput, ExecRequest, NewSandbox, Providers, Result, Sandboxes,
    ports::{Clock, Provider, Record, Records},
    testing::{Faults, FaultyProvider, ManualClock, MemoryRecords},
};
use seawall_providers::mock::{MockProvider, Script};
use seawall_wire::{Process, ProcessOutput};
use std::{sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};

pub struct World {
    /// The substrate itself: what is done here is done behind the service's back.
    pub mock: MockProvider,
    pub faults: Faults,
    pub records: MemoryRecords,
    pub clock: ManualClock,
    pub sandboxes: Sandboxes,
}

impl World {
    pub fn new() -> World {
        let mock = MockProvider::new();
        let faulty = FaultyProvider::new(Arc::new(mock.clone()));
        let faults = faulty.faults();
        let (records, clock) = (MemoryRecords::new(), ManualClock::default());
        let sandboxes = service(Arc::new(faulty), &records, &clock);
        World { mock, faults, records, clock, sandboxes }
    }

    /// The service of another host process, on the same substrate and records, without faults.
    pub fn another_host(&self) -> Sandboxes {
        service(Arc::new(self.mock.reopen()), &self.records, &self.clock)
    }

    /// Made, not started.
    pub async fn created(&self) -> SandboxId {
        self.sandboxes.create(NewSandbox::default()).await.unwrap().id
    }

    pub async fn running(&self) -> SandboxId {
        let id = self.created().await;
        assert_eq!(self.sandboxes.start(id).await.unwrap().state, SandboxState::Running);
        id
    }

    pub async fn stopped(&self) -> SandboxId {
        let id = self.running().await;
        self.sandboxes.stop(id, Duration::ZERO).await.unwrap();
        id
    }

    pub async fn state(&self, id: SandboxId) -> SandboxState {
        self.sandboxes.get(id).await.unwrap().state
    }

    /// How many boxes the substrate has.
    pub async fn boxes(&self) -> usize {
        self.mock.list().await.unwrap().len()
    }

    pub async fn recorded(&self, id: SandboxId) -> Option<Record> {
        self.records.get(id).await.unwrap()
    }

    /// A record without a box, as a crash leaves it.
    pub async fn leave_record(&self, state: SandboxState) -> SandboxId {
        let record = Record {
            id: SandboxId::generate(),
            account_id: seawall_api::AccountId::LOCAL,
            name: None,
            provider: "mock".to_owned(),
            template: None,
            state,
            reason: None,
            spec: SandboxSpec::default(),
            created_at: self.clock.now(),
            started_at: None,
            removing: None,
            unsynced: None,
        };
        self.records.insert(&record).await.unwrap();
        record.id
    }

    pub async fn put(&self, id: SandboxId, path: &str, body: &str) {
        let write = WriteFile {
            file: FileRef::new(path),
            mode: WriteMode::Replace,
            permissions: None,
            mtime: None,
            parents: true,
            max_size: None,
        };
        let guest = self.sandboxes.guest(id).await.unwrap();
        guest.write_all(write, body.as_bytes()).await.unwrap();
    }

    pub async fn take(&self, id: SandboxId, path: &str) -> Result<String, ErrorKind> {
        let guest = self.sandboxes.guest(id).await.unwrap();
        let body = guest.read_all(FileRef::new(path), 1 << 20).await.map_err(|error| error.kind())?;
        Ok(String::from_utf8(body).unwrap())
    }

    /// A command that prints this and exits with 0.
    pub fn prints(&self, name: &str, body: &[u8]) {
        let body = Bytes::copy_from_slice(body);
        self.mock.on_command(name, move |_| Script::stdout(body.clone()));
    }

    pub async fn exec<const N: usize>(&self, id: SandboxId, args: [&str; N]) -> ExecOutput {
        within(self.sandboxes.exec(id, ExecRequest::new(args))).await.unwrap()
    }
}

pub fn service(provider: Arc<dyn Provider>, records: &MemoryRecords, clock: &ManualClock) -> Sandboxes {
    let providers = Providers::new("mock", vec![provider]).unwrap();
    Sandboxes::new(providers, Arc::new(records.clone()), Arc::new(clock.clone()))
}

pub fn new(id: SandboxId) -> NewSandbox {
    NewSandbox { id: Some(id), ..NewSandbox::default() }
}

pub fn named(name: &str) -> NewSandbox {
    NewSandbox { name: Some(name.to_owned()), ..NewSandbox::default() }
}

/// The error of a call that must fail.
#[track_caller]
pub fn error<T>(result: Result<T>) -> Error {
    match result {
        Ok(_) => panic!("it succeeded, though it must not"),
        Err(error) => error,
    }
}

/// Nothing here takes ten minutes, not even on a clock that jumps: what does, hangs.
pub async fn within<T>(work: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(600), work).await.expect("it hangs")
}

/// Looks again and again, for ten seconds of tokio's clock.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("after ten seconds, not so: {what}");
}

/// All that a process told until its end.
#[derive(Debug)]
pub struct Told {
    pub bytes: Vec<u8>,
    pub gaps: Vec<(u64, u64)>,
    pub reconnects: u32,
    pub status: ExitStatus,
}

pub async fn to_the_end(process: &mut Process) -> Told {
    within(async {
        let (mut bytes, mut gaps, mut reconnects) = (Vec::new(), Vec::new(), 0);
        loop {
            match process.next().await.unwrap() {
                ProcessOutput::Data { bytes: more, .. } => bytes.extend_from_slice(&more),
                ProcessOutput::Gap { from, to } => gaps.push((from, to)),
                ProcessOutput::Reconnected => reconnects += 1,
                ProcessOutput::End(status) => return Told { bytes, gaps, reconnects, status },
                ProcessOutput::Drained => panic!("drained, though it was to be followed"),
            }
        }
    })
    .await
}

/// Bytes without a period that a lost or doubled piece could hide in.
pub fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
