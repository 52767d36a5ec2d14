//! Large bodies: there as a whole, or not at all.

use super::kit::{Cx, cases, put};
use bytes::Bytes;
use futures::{StreamExt, stream};
use seawall_api::ErrorKind;
use seawall_sync::{
    Error,
    bucket::{self, Bodies},
};
use std::time::Duration;

cases! {
    upload_of_twenty_mebibytes;
    upload_of_every_size_around_a_part;
    upload_replaces;
    s10_an_upload_that_fails_leaves_nothing;
    s10_an_upload_that_nobody_waits_for_leaves_nothing;
}

const MIB: usize = 1 << 20;

/// Bytes that do not repeat from part to part.
fn bytes(size: usize) -> Bytes {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()
    };
    let mut bytes: Vec<u8> = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        bytes.extend_from_slice(&next());
    }
    bytes.truncate(size);
    bytes.into()
}

/// In pieces that fit no part.
fn pieces(body: &Bytes) -> Vec<seawall_sync::Result<Bytes>> {
    (0..body.len()).step_by(700_001).map(|at| Ok(body.slice(at..body.len().min(at + 700_001)))).collect()
}

fn whole(body: &Bytes) -> Bodies {
    stream::iter(pieces(body)).boxed()
}

async fn upload_of_twenty_mebibytes(cx: Cx) {
    let body = bytes(20 * MIB);
    cx.bucket.upload("d/large", whole(&body)).await.unwrap();
    assert!(cx.read("d/large").await == body);
    // Over the border of two parts.
    let (start, end) = (8 * MIB - 5, 8 * MIB + 5);
    let part = cx.bucket.get("d/large", Some(start as u64..end as u64)).await.unwrap();
    assert!(bucket::collect(part, 10).await.unwrap() == body.slice(start..end));
    assert_eq!(cx.leftovers().await, Vec::<String>::new());
}

async fn upload_of_every_size_around_a_part(cx: Cx) {
    for size in [0, 1, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 16 * MIB] {
        let body = bytes(size);
        let key = format!("d/{size}");
        cx.bucket.upload(&key, whole(&body)).await.unwrap();
        assert!(cx.read(&key).await == body, "{size}");
    }
    // Pieces without a byte, too.
    let body = stream::iter([Ok(Bytes::new()), Ok(Bytes::from_static(b"x")), Ok(Bytes::new())]);
    cx.bucket.upload("d/x", body.boxed()).await.unwrap();
    assert_eq!(cx.read("d/x").await, "x");
}

async fn upload_replaces(cx: Cx) {
    for size in [3, 9 * MIB, 5] {
        let body = bytes(size);
        cx.bucket.upload("k", whole(&body)).await.unwrap();
        assert!(cx.read("k").await == body, "{size}");
    }
}

async fn s10_an_upload_that_fails_leaves_nothing(cx: Cx) {
    put(&*cx.bucket, "d/before").await;
    for size in [0, MIB, 20 * MIB] {
        for key in ["d/new", "d/before"] {
            let mut pieces = pieces(&bytes(size));
            pieces.push(Err(Error::conflict("it changed while it was read")));
            let error = cx.bucket.upload(key, stream::iter(pieces).boxed()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        }
        assert_eq!(cx.keys("", None).await, ["d/before"]);
        assert_eq!(cx.read("d/before").await, "d/before");
        assert_eq!(cx.leftovers().await, Vec::<String>::new(), "{size}");
    }
}

async fn s10_an_upload_that_nobody_waits_for_leaves_nothing(cx: Cx) {
    let endless = stream::iter(pieces(&bytes(20 * MIB))).chain(stream::pending()).boxed();
    let waited = tokio::time::timeout(Duration::from_secs(2), cx.bucket.upload("d/new", endless)).await;
    assert!(waited.is_err());
    assert_eq!(cx.keys("", None).await, Vec::<String>::new());
    // The parts go on a task of their own.
    for _ in 0..50 {
        if cx.leftovers().await.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{:?}", cx.leftovers().await);
}
