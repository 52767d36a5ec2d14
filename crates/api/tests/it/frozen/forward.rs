//! Both sides may add fields: one that is unknown is passed over, one that is missing has its default.

use crate::frozen::samples::{PROCESS, Sample, Shape, samples};
use seawall_api::{
    ProcessId,
    exec::StartProcess,
    frame::{Frame, Kind},
    message::Attach,
};
use serde::Serialize;

/// The body with one more field in its outermost struct; none where there is no struct.
fn with_an_unknown_field(sample: &Sample) -> Option<Vec<u8>> {
    let body = sample.body();
    let at = match sample.shape {
        Shape::Struct => 0,
        Shape::Enum => payload(body)?,
        Shape::Other => return None,
    };
    // A MessagePack map of up to 15 entries is one byte, of more three.
    let (entries, rest) = match body[at..] {
        [head @ 0x80..=0x8f, ref rest @ ..] => (u16::from(head & 0x0f), rest),
        [0xde, high, low, ref rest @ ..] => (u16::from_be_bytes([high, low]), rest),
        _ => return None,
    };
    let mut longer = body[..at].to_vec();
    longer.push(0xde);
    longer.extend_from_slice(&(entries + 1).to_be_bytes());
    longer.extend_from_slice(rest);
    // The map is the last thing in the body, so its last entry is too.
    longer.extend(rmp_serde::to_vec_named("from_the_future").ok()?);
    longer.extend(rmp_serde::to_vec_named(&("anything", [1, 2, 3], Some(1.5))).ok()?);
    Some(longer)
}

/// Where the content of an enum's variant begins; none for a variant without one.
fn payload(body: &[u8]) -> Option<usize> {
    match body {
        // A map of one entry, whose key is a short text: the variant's name.
        [0x81, head @ 0xa0..=0xbf, ..] => Some(2 + usize::from(head & 0x1f)),
        _ => None,
    }
}

#[test]
fn an_unknown_field_is_passed_over() {
    let mut tried = 0;
    for sample in samples() {
        let Some(body) = with_an_unknown_field(&sample) else {
            assert!(sample.shape != Shape::Struct, "{} is no map", sample.name);
            continue;
        };
        tried += 1;
        if let Err(why) = (sample.check)(Frame::new(sample.kind, body)) {
            panic!("{}: {why}", sample.name);
        }
    }
    assert!(tried > 50, "only {tried} samples have fields");
}

fn decode<T: serde::de::DeserializeOwned>(older: &impl Serialize) -> T {
    Frame::message(Kind::Request, older).unwrap().decode().unwrap()
}

#[test]
fn a_field_that_an_older_build_does_not_send_has_its_default() {
    #[derive(Serialize)]
    struct OldAttach {
        process: ProcessId,
        from: u64,
    }
    let process: ProcessId = PROCESS.parse().unwrap();
    let attach: Attach = decode(&OldAttach { process, from: 7 });
    assert_eq!(attach, Attach { process, from: 7, hold: false, follow: false });

    #[derive(Serialize)]
    struct OldStart {
        process: ProcessId,
    }
    let start: StartProcess = decode(&OldStart { process });
    assert_eq!(start, StartProcess { process, ..StartProcess::new(Vec::<String>::new()) });
}

#[test]
fn an_unknown_variant_is_an_error_not_another() {
    let frame = Frame::message(Kind::Request, &"from_the_future").unwrap();
    assert!(frame.decode::<seawall_api::message::Request>().is_err());
}
