//! Reading the body of a request to a model, within bounds of memory and time.

use crate::{
    answer::Refusal,
    room::{LONGEST, Room},
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::{
    StatusCode,
    body::{Body as _, Incoming},
};
use std::time::Duration;
use tokio::time::timeout;

/// How long a whole body may take to arrive, however it is spread over that time. A body takes memory of its account
/// while it arrives, so a box must not be able to hold that by a byte now and then.
const WHOLE_BODY: Duration = Duration::from_secs(300);

/// Reads a whole body. Its bytes are reserved in `room` before they are kept, and then the same again, for the parser's
/// longest text or the copy that has a bound for its answer.
pub async fn read(body: Incoming, room: &mut Room) -> Result<Bytes, Refusal> {
    let late = |_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body of the request did not come in time");
    timeout(WHOLE_BODY, read_all(body, room)).await.map_err(late)?
}

async fn read_all(mut body: Incoming, room: &mut Room) -> Result<Bytes, Refusal> {
    if body.size_hint().lower() > LONGEST {
        return Err(too_large());
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let broken = |_| Refusal::new(StatusCode::BAD_REQUEST, "the body of the request broke off");
        // Trailers say nothing here.
        let Ok(part) = frame.map_err(broken)?.into_data() else { continue };
        let length = (whole.len() + part.len()) as u64;
        if length > LONGEST {
            return Err(too_large());
        }
        room.grow_to(length).await?;
        whole.extend_from_slice(&part);
    }
    room.grow_to(2 * whole.len() as u64).await?;
    Ok(whole.freeze())
}

fn too_large() -> Refusal {
    let message = format!("the body of a request may have {} MiB", LONGEST >> 20);
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}
