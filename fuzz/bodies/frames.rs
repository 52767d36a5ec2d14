//! Whatever bytes come over a wire: no panic, no unbounded allocation, and what is read back is what was
//! written.

use bytes::BytesMut;
use seawall_api::{
    Fault,
    exec::{ExitStatus, ProcessControl, ProcessEvent, ProcessInfo, StartProcess},
    files::{Entry, FileChange, Listing, XattrReply},
    frame::{self, Frame, MAX_BODY},
    hello::{Hello, Welcome},
    message::{Accepted, Attach, GuestInfo, Listening, Request, Started},
};
use seawall_wire::{framed::FrameReader, handshake};

/// Decodes as a type and, where that works, checks that it survives another round.
macro_rules! round {
    ($frame:expr, $($kind:ty),*) => {$(
        if let Ok(message) = $frame.decode::<$kind>() {
            let again = Frame::message($frame.kind, &message);
            // A value may be larger written out than it came in, but then it says so.
            if let Ok(again) = again {
                let back: $kind = again.decode().expect("what was written is read");
                assert_eq!(back, message);
            }
        }
    )*};
}

pub fn frames(data: &[u8]) {
    let mut buffer = BytesMut::from(data);
    while let Ok(Some(frame)) = frame::take(&mut buffer) {
        assert!(frame.body.len() <= MAX_BODY);
        round!(
            frame,
            Request,
            Fault,
            Hello,
            Welcome,
            Started,
            Attach,
            GuestInfo,
            Listening,
            Accepted,
            StartProcess,
            ExitStatus,
            ProcessControl,
            ProcessEvent,
            ProcessInfo,
            Entry,
            Listing,
            XattrReply,
            FileChange
        );
        let _ = frame.decode_ack();
        let (kind, len) = (frame.kind, frame.body.len());
        if let Ok((_, offset, bytes)) = frame.decode_output() {
            assert!(offset.checked_add(bytes.len() as u64).is_some());
            assert_eq!(bytes.len() + frame::OUTPUT_PREFIX, len, "{kind:?}");
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let mut reader = FrameReader::new(data);
        while let Ok(Some(_)) = reader.next().await {}
        let mut stream = tokio::io::join(data, tokio::io::sink());
        let _ =
            handshake::accept(&mut stream, |_| Err(Fault::new(seawall_api::ErrorKind::Denied, "no"))).await;
        let hello = Hello::new(seawall_api::hello::Role::Client, seawall_api::SandboxId::generate());
        let mut stream = tokio::io::join(data, tokio::io::sink());
        let _ = handshake::offer(&mut stream, &hello).await;
    });
}
