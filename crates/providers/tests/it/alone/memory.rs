//! Memory is bounded, whatever a process prints and a reader does not read.

use seawall_api::{
    AccountId, SandboxId,
    exec::{StartProcess, WhenFull},
    hello::Role,
    sandbox::SandboxSpec,
};
use seawall_core::ports::{Provider, ToBox, Volumes};
use seawall_providers::local::LocalProvider;
use seawall_wire::{Guest, ProcessOutput};
use std::{fs, sync::Arc, time::Duration};

const GIB: u64 = 1 << 30;
const ALLOWED_KIB: u64 = 32 << 10;
const STALL: Duration = Duration::from_secs(10);

/// The most that a process ever held in memory, in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse().unwrap()
}

/// Takes 1 GiB from a process that numbers its lines, stalling in the middle, and checks every byte.
async fn take_a_gibibyte(guest: &Guest) {
    let program =
        "import sys\nw = sys.stdout.buffer.write\nfor i in range(1 << 14):\n    w(b'%065535d\\n' % i)\n";
    let start = StartProcess { when_full: WhenFull::Block, ..StartProcess::new(["python3", "-c", program]) };
    let mut process = guest.start(start).await.unwrap();
    let (mut seen, mut stalled) = (0u64, false);
    loop {
        match process.next().await.unwrap() {
            ProcessOutput::Data { offset, bytes, .. } => {
                assert_eq!(offset, seen);
                for (at, byte) in (seen..).zip(bytes.iter()) {
                    let expected = expected_byte(at);
                    assert_eq!(*byte, expected, "at {at}");
                }
                seen += bytes.len() as u64;
            }
            ProcessOutput::End(status) => {
                assert!(status.success(), "{status}");
                break;
            }
            other => panic!("{other:?}"),
        }
        if !stalled && seen > GIB / 3 {
            stalled = true;
            tokio::time::sleep(STALL).await;
        }
    }
    assert_eq!(seen, GIB);
}

/// Line `n` is `n` with leading zeros, 65,535 digits wide.
fn expected_byte(at: u64) -> u8 {
    let (line, column) = (at >> 16, at & 0xffff);
    match 65535 - column {
        0 => b'\n',
        digit if digit > 8 => b'0',
        digit => b'0' + u8::try_from(line / 10u64.pow(u32::try_from(digit).unwrap() - 1) % 10).unwrap(),
    }
}

#[test]
fn a_gibibyte_to_a_reader_that_stalls() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let data = tempfile::tempdir().unwrap();
        let provider = LocalProvider::open(data.path()).unwrap();
        let id = SandboxId::generate();
        provider.create(id, &SandboxSpec::default(), AccountId::LOCAL).await.unwrap();
        let pid = provider.start(id).await.unwrap().pid.unwrap();
        let guest =
            Guest::new(id, Role::Client, Arc::new(ToBox { provider: Arc::new(provider.clone()), id }));
        guest.info().await.unwrap();
        let (guest_before, host_before) = (peak_kib(pid), peak_kib(std::process::id()));
        take_a_gibibyte(&guest).await;
        let guest_grew = peak_kib(pid) - guest_before;
        let host_grew = peak_kib(std::process::id()) - host_before;
        println!("1 GiB with a stall of {STALL:?}: guest grew by {guest_grew} KiB, host by {host_grew} KiB");
        provider.remove(id, Volumes::Delete).await.unwrap();
        assert!(guest_grew < ALLOWED_KIB && host_grew < ALLOWED_KIB);
    });
}
