//! A sample of every message, with fixed ids and no two fields alike.

use seawall_api::{
    ErrorKind, Fault, ProcessId, SandboxId,
    exec::{
        ExitReason, ExitStatus, OutputStream, ProcessControl, ProcessEvent, ProcessInfo, StartProcess,
        TtySize, WhenFull,
    },
    files::{
        ChangeKind, Entry, EntryKind, FileChange, FileName, FileRef, ListDir, Listing, MakeDir, MoveFile,
        ReadFile, Root, SetMeta, WatchDir, WriteFile, WriteMode, XattrCall, XattrReply,
    },
    frame::{Frame, HEADER, Kind, output_header},
    hello::{Hello, Role, Welcome},
    message::{Accepted, Attach, Attend, GuestInfo, Listening, Request, Started},
};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

pub const PROCESS: &str = "0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e";
const SANDBOX: &str = "f47ac10b-58cc-4372-a567-0e02b2c3d479";

/// How a body is built, for adding a field to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Struct,
    Enum,
    Other,
}

type Check = Box<dyn Fn(Frame) -> Result<(), String>>;

pub struct Sample {
    pub name: String,
    pub kind: Kind,
    pub shape: Shape,
    /// The whole frame, as this build sends it.
    pub bytes: Vec<u8>,
    /// Whether a frame says what the sample says.
    pub check: Check,
}

impl Sample {
    pub fn body(&self) -> &[u8] {
        &self.bytes[HEADER..]
    }
}

fn same<T: PartialEq + Debug>(got: &T, wanted: &T) -> Result<(), String> {
    if got == wanted { Ok(()) } else { Err(format!("read as {got:?}\n  instead of {wanted:?}")) }
}

#[derive(Default)]
struct Samples(Vec<Sample>);

impl Samples {
    fn message<T>(&mut self, name: impl Into<String>, kind: Kind, shape: Shape, value: T)
    where
        T: Serialize + DeserializeOwned + PartialEq + Debug + 'static,
    {
        let bytes = Frame::message(kind, &value).unwrap().to_bytes();
        let check = move |frame: Frame| {
            if frame.kind != kind {
                return Err(format!("a {:?} frame instead of {kind:?}", frame.kind));
            }
            same(&frame.decode::<T>().map_err(|error| error.to_string())?, &value)
        };
        self.0.push(Sample { name: name.into(), kind, shape, bytes, check: Box::new(check) });
    }

    fn structure<T>(&mut self, name: impl Into<String>, kind: Kind, value: T)
    where
        T: Serialize + DeserializeOwned + PartialEq + Debug + 'static,
    {
        self.message(name, kind, Shape::Struct, value);
    }

    fn variant<T>(&mut self, name: impl Into<String>, kind: Kind, value: T)
    where
        T: Serialize + DeserializeOwned + PartialEq + Debug + 'static,
    {
        self.message(name, kind, Shape::Enum, value);
    }

    fn request(&mut self, name: &str, request: Request) {
        self.variant(format!("request.{name}"), Kind::Request, request);
    }

    /// A frame whose body is no message.
    fn plain(&mut self, name: &str, kind: Kind, bytes: Vec<u8>, check: Check) {
        self.0.push(Sample { name: name.to_owned(), kind, shape: Shape::Other, bytes, check });
    }
}

pub fn samples() -> Vec<Sample> {
    let mut samples = Samples::default();
    greetings(&mut samples);
    faults(&mut samples);
    processes(&mut samples);
    process_requests(&mut samples);
    files(&mut samples);
    file_requests(&mut samples);
    tunnels(&mut samples);
    frames(&mut samples);
    samples.0
}

fn process() -> ProcessId {
    PROCESS.parse().unwrap()
}

fn greetings(samples: &mut Samples) {
    let sandbox: SandboxId = SANDBOX.parse().unwrap();
    let roles =
        [("control", Role::Control { epoch: 1 << 40 }), ("client", Role::Client), ("bulk", Role::Bulk)];
    for (name, role) in roles {
        let hello = Hello { min_version: 1, max_version: 1, role, sandbox, build: "0.1.0".into() };
        samples.structure(format!("hello.{name}"), Kind::Hello, hello);
    }
    let welcome = Welcome { version: 1, build: "0.1.0".into(), boot: "b00t".into() };
    samples.structure("welcome", Kind::Welcome, welcome);
}

fn faults(samples: &mut Samples) {
    for kind in ErrorKind::ALL {
        samples.structure(format!("fault.{kind}"), Kind::Fault, Fault::new(kind, "no; do this instead"));
    }
    let fault = Fault::new(ErrorKind::Denied, "permission denied").with_errno(13);
    samples.structure("fault.with_errno", Kind::Fault, fault);
}

fn exit(reason: ExitReason) -> ExitStatus {
    ExitStatus { code: Some(3), signal: None, reason, output_end: 1 << 33, truncated: 77, limits: Vec::new() }
}

fn processes(samples: &mut Samples) {
    let (process, pid) = (process(), 4242);
    samples.structure("started", Kind::Reply, Started { process, pid, resumed: true });
    let reasons = [
        ("exited", ExitReason::Exited),
        ("timeout", ExitReason::Timeout),
        ("killed", ExitReason::Killed),
        ("oom", ExitReason::Oom),
        ("stopped", ExitReason::Stopped),
        ("lost", ExitReason::Lost),
    ];
    for (name, reason) in reasons {
        samples.structure(format!("exit_status.{name}"), Kind::End, exit(reason));
    }
    let signal = ExitStatus { code: None, signal: Some(15), ..exit(ExitReason::Exited) };
    samples.structure("exit_status.by_signal", Kind::End, signal);
    let running = ProcessInfo {
        process,
        pid,
        args: vec!["sh".into(), "-c".into(), "true".into()],
        tag: None,
        tty: false,
        started_at_ms: 1_720_000_000_123,
        output_start: 5,
        output_end: 300,
        exit: None,
    };
    let ended = ProcessInfo {
        tag: Some("build".into()),
        tty: true,
        exit: Some(exit(ExitReason::Exited)),
        ..running.clone()
    };
    samples.message("process_infos", Kind::Reply, Shape::Other, vec![running.clone(), ended.clone()]);
    samples.structure("process_info.running", Kind::Reply, running);
    samples.structure("process_info.ended", Kind::Reply, ended);
    samples.variant("process_event.gap", Kind::Event, ProcessEvent::Gap { from: 10, to: 70_000 });
    let size = TtySize { rows: 50, cols: 132 };
    samples.variant("process_control.resize", Kind::Control, ProcessControl::Resize(size));
    // Its content is a number, which takes no fields.
    let signal = ProcessControl::Signal(2);
    samples.message("process_control.signal", Kind::Control, Shape::Other, signal);
    let info = GuestInfo {
        build: "0.1.0".into(),
        boot: "b00t".into(),
        pid: 1,
        uptime_s: 86_400,
        processes_running: 3,
        idle_s: 60,
    };
    samples.structure("guest_info", Kind::Reply, info);
}

fn process_requests(samples: &mut Samples) {
    let process = process();
    samples.request("ping", Request::Ping);
    samples.request("info", Request::Info);
    let full = StartProcess {
        process,
        args: vec!["python3".into(), "-c".into(), "print(6*7)".into()],
        env: vec![("MODE".into(), "test".into()), ("EMPTY".into(), String::new())],
        cwd: Some("/work/src".into()),
        user: Some("1000:1000".into()),
        tty: Some(TtySize { rows: 24, cols: 80 }),
        stdin: true,
        when_full: WhenFull::Block,
        timeout_ms: Some(300_000),
        grace_ms: Some(5_000),
        output_limit: Some(1 << 20),
        tag: Some("build".into()),
        detach: true,
    };
    let plain = StartProcess { process, ..StartProcess::new(["true"]) };
    samples.structure("start_process", Kind::Request, full.clone());
    samples.request("start", Request::Start(Box::new(full)));
    samples.request("start.plain", Request::Start(Box::new(plain)));
    let attach = Attach { process, from: 1 << 33, hold: true, follow: true };
    samples.structure("attach", Kind::Request, attach);
    samples.request("attach", Request::Attach(attach));
    samples.request("processes", Request::Processes);
    samples.request("signal", Request::Signal { process, signal: 15 });
    samples.request("kill", Request::Kill { process });
    samples.request("resize", Request::Resize { process, size: TtySize { rows: 50, cols: 132 } });
    samples.request("input", Request::Input { process, close: true });
    let attend = Attend { idle_s: Some(1800), max_lifetime_s: None, for_s: 120 };
    samples.request("attend", Request::Attend(attend));
    samples.request("shutdown", Request::Shutdown { grace_ms: 10_000 });
    samples.request("sync", Request::Sync { wait_ms: 2_000 });
    samples.request("collect", Request::Collect { session: 7, files: vec![odd_name()] });
    samples.request("put", Request::Put { session: 7 });
    samples.request("bulk", Request::Bulk);
}

/// Bytes that are no text: names need not be.
fn odd_name() -> FileName {
    FileName(b"dir/\xff\xfe\\ name".to_vec())
}

fn file() -> FileRef {
    FileRef::new("src/main.rs").beneath(Root::Work).as_user("ann")
}

fn entry(kind: EntryKind) -> Entry {
    Entry {
        path: odd_name(),
        kind,
        size: 5 << 30,
        mode: 0o4755,
        uid: 1000,
        gid: 1001,
        user: Some("ann".into()),
        group: None,
        mtime: -1,
        mtime_nanos: 999_999_999,
        target: Some(FileName::from("../elsewhere")),
    }
}

fn files(samples: &mut Samples) {
    let kinds = [
        ("file", EntryKind::File),
        ("directory", EntryKind::Directory),
        ("symlink", EntryKind::Symlink),
        ("fifo", EntryKind::Fifo),
        ("socket", EntryKind::Socket),
        ("device", EntryKind::Device),
    ];
    for (name, kind) in kinds {
        samples.structure(format!("entry.{name}"), Kind::Reply, entry(kind));
    }
    let unreadable = vec![(FileName::from("secret"), "permission denied".to_owned())];
    let listing =
        Listing { entries: vec![entry(EntryKind::File)], next: Some(FileName::from("src")), unreadable };
    samples.structure("listing", Kind::Reply, listing);
    let last = Listing { entries: vec![], next: None, unreadable: vec![] };
    samples.structure("listing.empty", Kind::Reply, last);
    let replies = [
        ("value", XattrReply::Value(vec![0, 1, 255])),
        ("names", XattrReply::Names(vec!["user.a".into(), "user.b".into()])),
        ("done", XattrReply::Done),
    ];
    for (name, reply) in replies {
        samples.message(format!("xattr_reply.{name}"), Kind::Reply, Shape::Other, reply);
    }
    let changes = [
        ("create", ChangeKind::Create),
        ("write", ChangeKind::Write),
        ("remove", ChangeKind::Remove),
        ("rename", ChangeKind::Rename),
        ("chmod", ChangeKind::Chmod),
        ("overflow", ChangeKind::Overflow),
    ];
    for (name, kind) in changes {
        let change = FileChange { path: odd_name(), kind };
        samples.structure(format!("file_change.{name}"), Kind::Event, change);
    }
}

fn file_requests(samples: &mut Samples) {
    samples.request("stat", Request::Stat { file: file(), follow: true });
    let home = FileRef::new("notes").beneath(Root::Home);
    samples.request("stat.home", Request::Stat { file: home, follow: false });
    samples.request("stat.box", Request::Stat { file: FileRef::new("/etc/hosts"), follow: false });
    let list = ListDir { dir: file(), depth: 3, after: Some(odd_name()), limit: 1000 };
    samples.request("list", Request::List(list));
    samples.request("read", Request::Read(ReadFile { file: file(), offset: 1 << 33, length: Some(4096) }));
    let modes = [
        ("write", WriteMode::Replace),
        ("write.create_new", WriteMode::CreateNew),
        ("write.append", WriteMode::Append),
        ("write.at", WriteMode::At(1 << 33)),
    ];
    for (name, mode) in modes {
        let write = WriteFile {
            file: file(),
            mode,
            permissions: Some(0o640),
            mtime: Some((1_720_000_000, 5)),
            parents: true,
            max_size: Some(10_485_760),
        };
        samples.request(name, Request::Write(write));
    }
    let make = MakeDir { dir: file(), parents: true, permissions: Some(0o750) };
    samples.request("make_dir", Request::MakeDir(make));
    let moved = MoveFile { from: file(), to: FileName::from("src/lib.rs"), overwrite: true };
    samples.request("move", Request::Move(moved));
    samples.request("remove", Request::Remove { file: file(), recursive: true });
    samples.request("symlink", Request::Symlink { link: file(), target: odd_name() });
    let set = SetMeta {
        file: file(),
        permissions: Some(0o600),
        mtime: Some((-5, 1)),
        owner: Some("1000:1000".into()),
    };
    samples.request("set_meta", Request::SetMeta(set));
    let calls = [
        ("xattr", XattrCall::List),
        ("xattr.get", XattrCall::Get("user.a".into())),
        ("xattr.set", XattrCall::Set { name: "user.a".into(), value: vec![0, 1, 255] }),
        ("xattr.remove", XattrCall::Remove("user.a".into())),
    ];
    for (name, call) in calls {
        samples.request(name, Request::Xattr { file: file(), call });
    }
    samples.request("watch", Request::Watch(WatchDir { dir: file(), recursive: true }));
}

fn tunnels(samples: &mut Samples) {
    samples.request("connect", Request::Connect { port: 8080 });
    samples.request("listen", Request::Listen { port: 0 });
    samples.structure("listening", Kind::Reply, Listening { port: 40_000 });
    samples.structure("accepted", Kind::Request, Accepted { port: 40_000 });
}

fn frames(samples: &mut Samples) {
    samples.message("reply.nothing", Kind::Reply, Shape::Other, ());
    let streams = [
        ("output.stdout", OutputStream::Stdout),
        ("output.stderr", OutputStream::Stderr),
        ("output.tty", OutputStream::Tty),
    ];
    for (name, stream) in streams {
        let (offset, body) = (1_u64 << 33, b"printed\n");
        let bytes = [&output_header(stream, offset, body.len())[..], body].concat();
        let check = move |frame: Frame| {
            let (stream_got, offset_got, got) = frame.decode_output().map_err(|error| error.to_string())?;
            same(&(stream_got, offset_got, &got[..]), &(stream, offset, &body[..]))
        };
        samples.plain(name, Kind::Output, bytes, Box::new(check));
    }
    let offset = 0x0102_0304_0506_0708;
    let check = move |frame: Frame| {
        same(&frame.kind, &Kind::Ack)?;
        same(&frame.decode_ack().map_err(|error| error.to_string())?, &offset)
    };
    samples.plain("ack", Kind::Ack, Frame::ack(offset).to_bytes(), Box::new(check));
    let bare = [
        ("data", Frame::new(Kind::Data, &b"\x00body\xff"[..])),
        ("end.empty", Frame::empty(Kind::End)),
        ("ping", Frame::empty(Kind::Ping)),
        ("pong", Frame::empty(Kind::Pong)),
    ];
    for (name, frame) in bare {
        let (kind, bytes) = (frame.kind, frame.to_bytes());
        samples.plain(name, kind, bytes, Box::new(move |got: Frame| same(&got, &frame)));
    }
}
