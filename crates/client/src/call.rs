//! One call: how it is asked, how often, and how its answer is read.

use crate::{Client, Error, LocalServer, Result, local};
use bytes::Bytes;
use reqwest::{
    Method, RequestBuilder, Response, StatusCode, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
};
use seawall_api::{ErrorKind, ProcessId};
use serde::{Serialize, de::DeserializeOwned};
use std::{fmt::Display, time::Duration};
use tokio::time::{Instant, sleep};

const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The code of a keyed call whose first try was cut off.
const UNKNOWN: &str = "idempotency_unknown";

/// So often a call is tried, and so long is the first pause.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(150);
/// A server that names a longer pause is not waited for so long.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// So often a call of ours that still runs, since its connection broke, is asked for.
const RUNNING_TRIES: u32 = 300;
/// How long one try may start servers that end at once.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// Of an answer that tells of an error.
const MAX_REFUSAL: usize = 64 << 10;

/// Whether a call may be made again. Only what did not happen is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It only looks.
    Always,
    /// It has an `Idempotency-Key`: where no answer came, the same call again gets the first answer, and is not done again. An
    /// answer is final unless it says that nothing was done.
    Keyed,
    /// Only where the server cannot have seen it, or said that nothing was done.
    Unseen,
    /// Its body is gone with the first try.
    Never,
}

/// A call that is not made yet. Clones of it are the same call again.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    client: Client,
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Option<Bytes>,
    repeat: Repeat,
    /// Doing it twice is doing it once, so it is made anew where the outcome of the first is unknown.
    idempotent: bool,
    /// It cannot be made.
    wrong: Option<Error>,
}

/// Why a try failed, and when another may go better.
#[derive(Debug)]
struct Failed {
    error: Error,
    again: Again,
    /// No server listens at the local socket.
    absent: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    No,
    /// There was no answer. `seen`: the server may have begun.
    Broken {
        seen: bool,
    },
    /// The server is busy, and says when to come again. `done`: whether the call may have been done all the same.
    After {
        pause: Duration,
        done: bool,
    },
    /// The same call still runs there.
    Running(Duration),
}

impl Call {
    pub fn new(client: Client, method: Method, url: Url, repeat: Repeat) -> Call {
        Call {
            client,
            method,
            url,
            headers: HeaderMap::new(),
            body: None,
            repeat,
            idempotent: false,
            wrong: None,
        }
    }

    /// Made once: every try has the same.
    pub fn with_own_key(self) -> Call {
        self.repeat(Repeat::Keyed)
            .header(HeaderName::from_static(IDEMPOTENCY_KEY), &ProcessId::generate().to_string())
    }

    /// Doing it twice is doing it once, whatever became of the first.
    pub fn idempotent(mut self) -> Call {
        self.idempotent = true;
        self
    }

    pub fn repeat(mut self, repeat: Repeat) -> Call {
        self.repeat = repeat;
        self
    }

    pub fn header(mut self, name: HeaderName, value: &str) -> Call {
        match HeaderValue::from_str(value) {
            Ok(value) => drop(self.headers.insert(name, value)),
            Err(_) => {
                self.wrong = Some(Error::new(ErrorKind::Invalid, format!("`{value}` cannot be a header")))
            }
        }
        self
    }

    pub fn query(mut self, name: &str, value: impl Display) -> Call {
        self.url.query_pairs_mut().append_pair(name, &value.to_string());
        self
    }

    pub fn maybe(self, name: &str, value: Option<impl Display>) -> Call {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    pub fn page(self, page: &crate::Page) -> Call {
        self.maybe("limit", page.limit).maybe("after", page.after.as_deref())
    }

    pub fn json(mut self, body: &impl Serialize) -> Call {
        match serde_json::to_vec(body) {
            Ok(bytes) => self.body = Some(bytes.into()),
            Err(error) => {
                self.wrong = Some(Error::new(ErrorKind::Invalid, format!("cannot be sent: {error}")))
            }
        }
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self
    }

    pub fn bytes(mut self, body: Bytes) -> Call {
        self.body = Some(body);
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        self
    }

    /// The whole answer, read as what it must be.
    pub async fn answer<T: DeserializeOwned>(self) -> Result<T> {
        let body = self.whole().await?;
        serde_json::from_slice(&body).map_err(|error| Error::unreadable("answer", error))
    }

    /// An answer that says no more than that it is done.
    pub async fn done(self) -> Result<()> {
        self.whole().await.map(drop)
    }

    async fn whole(self) -> Result<Bytes> {
        match self.tried_whole().await {
            // The server was killed in the midst of it.
            Err(error) if self.idempotent && error.code() == UNKNOWN => {
                self.with_own_key().tried_whole().await
            }
            done => done,
        }
    }

    async fn tried_whole(&self) -> Result<Bytes> {
        let mut tries = Tries::new(self.repeat);
        loop {
            match self.try_whole().await {
                Ok(body) => return Ok(body),
                Err(failed) => tries.wait(failed).await?,
            }
        }
    }

    async fn try_whole(&self) -> Result<Bytes, Failed> {
        let response = self.try_head().await?;
        response.bytes().await.map_err(|error| self.broken(&error))
    }

    /// The head of the answer; the body is the caller's.
    pub async fn open(&self) -> Result<Response> {
        let mut tries = Tries::new(self.repeat);
        loop {
            match self.try_head().await {
                Ok(response) => return Ok(response),
                Err(failed) => tries.wait(failed).await?,
            }
        }
    }

    /// As [`Call::open`], without another try.
    pub async fn open_once(&self) -> Result<Response> {
        self.try_head().await.map_err(|failed| failed.error)
    }

    /// With a body that comes as it is sent. There is one try.
    pub async fn send_body(self, body: reqwest::Body) -> Result<Bytes> {
        let response = self.head_of(self.request().body(body)).await.map_err(|failed| failed.error)?;
        response.bytes().await.map_err(|error| Error::broken(self.client.base(), &error))
    }

    fn request(&self) -> RequestBuilder {
        let http = self.client.http();
        let request = http.request(self.method.clone(), self.url.clone()).headers(self.headers.clone());
        match &self.body {
            Some(body) => request.body(body.clone()),
            None => request,
        }
    }

    /// One try. A server that does not run is started first.
    async fn try_head(&self) -> Result<Response, Failed> {
        let begun = Instant::now();
        loop {
            let failed = match self.head_of(self.request()).await {
                Err(failed) if failed.absent && begun.elapsed() < START_PATIENCE => failed,
                done => return done,
            };
            let Some(starter) = self.client.local_server().and_then(LocalServer::starter) else {
                return Err(failed);
            };
            starter.start().await.map_err(|error| Failed { error, again: Again::No, absent: false })?;
        }
    }

    async fn head_of(&self, request: RequestBuilder) -> Result<Response, Failed> {
        if let Some(error) = &self.wrong {
            return Err(Failed { error: error.clone(), again: Again::No, absent: false });
        }
        let response = request.send().await.map_err(|error| self.broken(&error))?;
        match response.status() {
            status if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS => Ok(response),
            _ => Err(refused(response).await),
        }
    }

    fn broken(&self, error: &reqwest::Error) -> Failed {
        let again = match error.is_builder() {
            true => Again::No,
            false => Again::Broken { seen: !error.is_connect() },
        };
        let Some(local) = self.client.local_server() else {
            return Failed { error: Error::broken(self.client.base(), error), again, absent: false };
        };
        let absent = error.is_connect() && local::is_absent(error);
        let forbidden = error.is_connect() && local::is_forbidden(error);
        let again = if forbidden { Again::No } else { again };
        Failed { error: Error::local(local, error, absent, forbidden), again, absent }
    }
}

async fn refused(mut response: Response) -> Failed {
    let status = response.status();
    let pause = response.headers().get(RETRY_AFTER).and_then(seconds);
    let mut body = Vec::new();
    // An error whose explanation is cut off is still that error.
    while let Ok(Some(part)) = response.chunk().await {
        body.extend_from_slice(&part);
        if body.len() > MAX_REFUSAL {
            break;
        }
    }
    let error = Error::answered(status, &body);
    let again = match (status, pause) {
        // Of a proxy that could not reach the server, or lost it.
        (StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT, _)
            if !error.is_answer() =>
        {
            Again::Broken { seen: true }
        }
        (StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS, Some(pause)) => {
            Again::After { pause, done: !error.problem.nothing_done }
        }
        (StatusCode::CONFLICT, pause) if error.code() == "idempotency_running" => {
            Again::Running(pause.unwrap_or(Duration::from_secs(1)))
        }
        _ => Again::No,
    };
    Failed { error, again, absent: false }
}

fn seconds(value: &HeaderValue) -> Option<Duration> {
    let seconds = value.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_PAUSE))
}

/// How often a call was tried.
#[derive(Debug)]
struct Tries {
    repeat: Repeat,
    done: u32,
    running: u32,
}

impl Tries {
    fn new(repeat: Repeat) -> Tries {
        Tries { repeat, done: 0, running: 0 }
    }

    /// Until the next try; or the error, where there is none.
    async fn wait(&mut self, failed: Failed) -> Result<()> {
        let Some(pause) = self.pause(failed.again) else { return Err(failed.error) };
        tracing::debug!(error = %failed.error, ?pause, "a call is tried again");
        sleep(pause).await;
        Ok(())
    }

    fn pause(&mut self, again: Again) -> Option<Duration> {
        match (again, self.repeat) {
            (Again::No, _) | (_, Repeat::Never) => return None,
            (Again::Broken { seen: true } | Again::Running(_), Repeat::Unseen) => return None,
            (Again::After { done: true, .. }, Repeat::Unseen | Repeat::Keyed) => return None,
            (Again::Running(pause), _) => {
                self.running += 1;
                return (self.running <= RUNNING_TRIES).then_some(pause);
            }
            _ => {}
        }
        self.done += 1;
        if self.done >= TRIES {
            return None;
        }
        match again {
            Again::After { pause, .. } => Some(pause),
            _ => Some(PAUSE * 4_u32.pow(self.done - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, answer};

    const BROKEN: Again = Again::Broken { seen: true };
    const UNREACHED: Again = Again::Broken { seen: false };

    fn after(done: bool) -> Again {
        Again::After { pause: Duration::from_secs(2), done }
    }

    #[test]
    fn tries_are_counted() {
        let mut tries = Tries::new(Repeat::Always);
        assert_eq!(tries.pause(BROKEN), Some(PAUSE));
        assert_eq!(tries.pause(after(true)), Some(Duration::from_secs(2)));
        assert_eq!(tries.pause(BROKEN), None);
    }

    /// A row for each kind of call: which failures it is repeated after.
    #[test]
    fn k6_only_what_did_not_happen_is_repeated() {
        let failures = [BROKEN, UNREACHED, after(true), after(false), Again::Running(PAUSE), Again::No];
        let table = [
            (Repeat::Always, [true, true, true, true, true, false]),
            // The server knows a call with a key again where no answer came.
            (Repeat::Keyed, [true, true, false, true, true, false]),
            (Repeat::Unseen, [false, true, false, true, false, false]),
            (Repeat::Never, [false; 6]),
        ];
        for (repeat, expected) in table {
            let repeated = failures.map(|again| Tries::new(repeat).pause(again).is_some());
            assert_eq!(repeated, expected, "{repeat:?}");
        }
    }

    #[test]
    fn a_call_that_still_runs_is_waited_for() {
        let mut tries = Tries::new(Repeat::Keyed);
        let pause = Duration::from_secs(1);
        assert!((0..RUNNING_TRIES).all(|_| tries.pause(Again::Running(pause)) == Some(pause)));
        assert_eq!(tries.pause(Again::Running(pause)), None);
    }

    /// 503 with a problem that says whether anything was done.
    fn busy(nothing_done: bool) -> String {
        let body = format!(
            r#"{{"type":"about:blank","title":"","status":503,"code":"unavailable","detail":"busy","request_id":"r","retryable":true,"nothing_done":{nothing_done}}}"#
        );
        let length = body.len();
        format!(
            "HTTP/1.1 503 Busy\r\nretry-after: 0\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
    }

    #[tokio::test]
    async fn a_busy_server_is_asked_again_with_the_same_key() {
        let server = testing::serve(vec![busy(true), String::new(), answer("{\"ok\":true}")]).await;
        let client = Client::new(&server.url, Some("k".into())).unwrap();
        let got: serde_json::Value = client.post(&["things"]).json(&1).answer().await.unwrap();
        assert_eq!(got["ok"], true);
        let asked = server.asked().await;
        assert_eq!(asked.len(), 3);
        let keys: Vec<_> = asked.iter().map(|each| testing::header(each, "idempotency-key")).collect();
        assert!(keys[0].is_some() && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
        assert_eq!(testing::header(&asked[0], "authorization").as_deref(), Some("Bearer k"));
    }

    /// The repeat would be told that the outcome is unknown, instead of why the call failed.
    #[tokio::test]
    async fn k6_a_failure_in_the_midst_is_told_and_not_repeated() {
        let server = testing::serve(vec![busy(false), answer("{}")]).await;
        let client = Client::new(&server.url, None).unwrap();
        let error = client.post(&["things"]).json(&1).done().await.unwrap_err();
        assert_eq!((error.status, error.to_string().as_str()), (Some(503), "busy"));
        assert_eq!(server.asked().await.len(), 1);
        // Looking does nothing.
        let server = testing::serve(vec![busy(false), answer("{}")]).await;
        Client::new(&server.url, None).unwrap().get(&["things"]).done().await.unwrap();
        assert_eq!(server.asked().await.len(), 2);
    }

    #[tokio::test]
    async fn nobody_there_is_told_with_what_to_do() {
        let client = Client::new("http://127.0.0.1:1", None).unwrap();
        let error = client.get(&["health"]).done().await.unwrap_err();
        assert_eq!((error.status, error.kind()), (None, ErrorKind::Unavailable));
        assert!(error.to_string().contains("seawall serve"), "{error}");
    }

    #[tokio::test]
    async fn a_refusal_is_not_repeated() {
        let refusal = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let server = testing::serve(vec![refusal.to_owned(), answer("{}")]).await;
        let client = Client::new(&server.url, None).unwrap();
        let error = client.get(&["x"]).done().await.unwrap_err();
        assert_eq!((error.status, error.kind()), (Some(404), ErrorKind::NotFound));
        assert_eq!(server.asked().await.len(), 1);
    }
}
