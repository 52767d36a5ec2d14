//! The one repository that a sandbox may reach.

use crate::gateway::{
    client::{Client, access, gateway, with_git, with_models},
    upstream::{LAST_CHUNK, Step, Upstream, chunk, chunked, nowhere},
};
use seawall_core::{
    agents::ModelApi::Anthropic,
    ports::gateway::{Access, GitAccess},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::oneshot,
};

const FETCH: &str = "info/refs?service=git-upload-pack";
/// `x-access-token:ghs_secret`.
const BASIC: &str = "Basic eC1hY2Nlc3MtdG9rZW46Z2hzX3NlY3JldA==";
const MIB: usize = 1 << 20;

fn with_repository(url: String) -> Access {
    Access { git: Some(GitAccess { url, token: None, may_push: true }), ..access() }
}

fn read_only(upstream: &Upstream) -> Access {
    let mut access = with_git(upstream);
    if let Some(git) = &mut access.git {
        git.may_push = false;
    }
    access
}

#[tokio::test]
async fn h7_fetching_passes_with_the_servers_token() {
    let headers = "content-type: application/x-git-upload-pack-advertisement\r\ncache-control: no-cache\r\n\
                   set-cookie: a=b\r\nwww-authenticate: Basic\r\n";
    let mut upstream = Upstream::answering("200 OK", headers, "001e# service=git-upload-pack\n").await;
    for name in ["repo.git", "repo"] {
        let mut client = Client::connect(&gateway("http://unused.invalid"), &Arc::new(with_git(&upstream)));
        let line = format!("GET /git/{}/owner/{name}/{FETCH}", upstream.address);
        let sent = "git-protocol: version=2\r\nauthorization: Basic b2YtdGhlLWJveA==\r\ncookie: of-the-box\r\n\
                    accept-encoding: deflate, gzip\r\nuser-agent: git/2.50\r\n";
        client.send(&line, sent, "").await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "001e# service=git-upload-pack\n"));
        assert_eq!(reply.header("content-type"), Some("application/x-git-upload-pack-advertisement"));
        assert_eq!(reply.header("cache-control"), Some("no-cache"));
        assert_eq!(reply.header("set-cookie"), None);
        assert_eq!(reply.header("www-authenticate"), None);

        let asked = upstream.asked().await;
        assert_eq!(asked.line, format!("GET /owner/repo.git/{FETCH} HTTP/1.1"));
        assert_eq!(asked.all("authorization"), [BASIC]);
        assert_eq!(asked.all("git-protocol"), ["version=2"]);
        assert_eq!(asked.all("user-agent"), ["git/2.50"]);
        assert_eq!(asked.all("host"), [upstream.address.to_string()]);
        assert!(asked.all("cookie").is_empty());
    }
}

#[tokio::test]
async fn bodies_pass_as_they_are() {
    let mut upstream = Upstream::answering("200 OK", "content-encoding: gzip\r\n", "an answer").await;
    for (service, length) in [("git-upload-pack", true), ("git-receive-pack", false)] {
        let mut client = Client::connect(&gateway("http://unused.invalid"), &Arc::new(with_git(&upstream)));
        let line = format!("POST /git/{}/owner/repo.git/{service}", upstream.address);
        let headers = format!("content-type: application/x-{service}-request\r\ncontent-encoding: gzip\r\n");
        if length {
            client.send(&line, &headers, "a request").await;
        } else {
            let chunks = format!("{line} HTTP/1.1\r\n{headers}transfer-encoding: chunked\r\n\r\n");
            client.write(chunks.as_bytes()).await;
            client.write(&chunk(b"a req")).await;
            client.write(&chunk(b"uest")).await;
            client.write(LAST_CHUNK).await;
        }
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "an answer"));
        assert_eq!(reply.header("content-encoding"), Some("gzip"));
        let asked = upstream.asked().await;
        assert_eq!(asked.line, format!("POST /owner/repo.git/{service} HTTP/1.1"));
        assert_eq!(asked.body, b"a request");
        assert_eq!(asked.all("content-encoding"), ["gzip"]);
        assert_eq!(asked.all("content-type"), [format!("application/x-{service}-request")]);
        assert_eq!(asked.all("content-length"), length.then_some("9").as_slice());
        assert_eq!(asked.all("authorization"), [BASIC]);
    }
}

#[tokio::test]
async fn everything_else_is_refused_in_a_line_that_git_shows() {
    let mut upstream = Upstream::answering("200 OK", "", "").await;
    let gateway = gateway(&upstream.url());
    let host = upstream.address;
    for line in [
        format!("GET /git/{host}/owner/other.git/{FETCH}"),
        format!("GET /git/{host}/other/repo.git/{FETCH}"),
        format!("GET /git/github.com/owner/repo.git/{FETCH}"),
        format!("GET /git/{host}/owner/repo.git/../other.git/{FETCH}"),
        format!("GET /git/{host}/owner/repo.git/%2e%2e/other.git/{FETCH}"),
        format!("GET /git/{host}//owner/repo.git/{FETCH}"),
        format!("GET /git/{host}/owner/repo.git/HEAD"),
        format!("DELETE /git/{host}/owner/repo.git/{FETCH}"),
        "GET /git/".to_owned(),
    ] {
        let reply = Client::connect(&gateway, &Arc::new(with_git(&upstream))).ask(&line, "").await;
        assert_eq!(reply.status, 403, "{line}");
        assert_eq!(reply.body, format!("seawall: this sandbox may reach {host}/owner/repo only\n"), "{line}");
        assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
    }
    let line = format!("GET /git/{host}/owner/repo.git/{FETCH}");
    let reply = Client::connect(&gateway, &Arc::new(with_models(Anthropic))).ask(&line, "").await;
    assert_eq!(reply.status, 403);
    assert!(reply.body.contains("no repository"), "{}", reply.body);
    upstream.expect_none();
}

#[tokio::test]
async fn who_may_not_push_is_told_so() {
    let mut upstream = Upstream::answering("200 OK", "", "").await;
    let access = Arc::new(read_only(&upstream));
    let gateway = gateway(&upstream.url());
    let repository = format!("/git/{}/owner/repo.git", upstream.address);
    for line in [
        format!("GET {repository}/info/refs?service=git-receive-pack"),
        format!("POST {repository}/git-receive-pack"),
    ] {
        let reply = Client::connect(&gateway, &access).ask(&line, "").await;
        assert_eq!(reply.status, 403, "{line}");
        assert!(reply.body.contains("and not push to it"), "{}", reply.body);
    }
    upstream.expect_none();
    let reply = Client::connect(&gateway, &access).ask(&format!("GET {repository}/{FETCH}"), "").await;
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn what_goes_wrong_there_is_told_here() {
    let location = "location: http://127.0.0.1:1/\r\n";
    for (status, headers, expected, words) in [
        ("301 Moved", location, 502, "answered with a redirect (301)"),
        ("401 Unauthorized", "www-authenticate: Basic realm=x\r\n", 403, "does not take the server's token"),
        ("404 Not Found", "content-type: text/plain\r\n", 404, "what it says"),
    ] {
        let upstream = Upstream::answering(status, headers, "what it says").await;
        let line = format!("GET /git/{}/owner/repo.git/{FETCH}", upstream.address);
        let access = Arc::new(with_git(&upstream));
        let reply = Client::connect(&gateway(&upstream.url()), &access).ask(&line, "").await;
        assert_eq!(reply.status, expected, "{status}");
        assert!(reply.body.contains(words), "{}", reply.body);
        assert!(!format!("{reply:?}").contains("ghs_"), "{reply:?}");
        assert_eq!(reply.header("location"), None);
    }

    let url = nowhere().await;
    let access = Arc::new(with_repository(format!("{url}/o/r")));
    let line = format!("GET {}/o/r/{FETCH}", url.replace("http://", "/git/"));
    let reply = Client::connect(&gateway(&url), &access).ask(&line, "").await;
    assert_eq!(reply.status, 502);
    assert!(reply.body.contains("cannot be reached"), "{}", reply.body);
}

#[tokio::test]
async fn without_a_token_none_is_sent() {
    let mut upstream = Upstream::answering("401 Unauthorized", "", "").await;
    let access = Arc::new(with_repository(format!("http://user:word@{}/o/r.git", upstream.address)));
    let mut client = Client::connect(&gateway(&upstream.url()), &access);
    let line = format!("GET /git/{}/o/r.git/{FETCH}", upstream.address);
    client.send(&line, "authorization: Basic b2YtdGhlLWJveA==\r\n", "").await;
    let reply = client.reply().await;
    assert_eq!(reply.status, 403);
    assert!(reply.body.contains("the server has none for it"), "{}", reply.body);
    assert!(upstream.asked().await.all("authorization").is_empty());
}

/// A server that reads nothing of a request's body until it is told to. Ends with what it read in all.
async fn slow_server(go: oneshot::Receiver<()>) -> (String, tokio::task::JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let reading = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        go.await.unwrap();
        let (mut read, mut part) = (0, vec![0; MIB]);
        let mut end = Vec::new();
        while !end.ends_with(LAST_CHUNK) {
            let length = connection.read(&mut part).await.unwrap();
            assert!(length > 0, "the body broke off");
            read += length;
            end.extend_from_slice(&part[..length]);
            end.drain(..end.len().saturating_sub(LAST_CHUNK.len()));
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
        connection.write_all(answer).await.unwrap();
        read
    });
    (url, reading)
}

#[tokio::test]
async fn a_push_is_not_kept_in_memory() {
    const PARTS: usize = 64;
    let (go, told) = oneshot::channel();
    let (url, reading) = slow_server(told).await;
    let access = Arc::new(with_repository(format!("{url}/o/r.git")));
    let client = Client::connect(&gateway(&url), &access);
    let (mut reader, mut writer) = tokio::io::split(client.into_connection());
    let path = url.replace("http://", "/git/");
    let written = Arc::new(AtomicUsize::new(0));
    let counted = written.clone();
    let writing = tokio::spawn(async move {
        let head =
            format!("POST {path}/o/r.git/git-receive-pack HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n");
        writer.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..PARTS {
            writer.write_all(&chunk(&vec![7; MIB])).await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
        }
        writer.write_all(LAST_CHUNK).await.unwrap();
        writer
    });
    // What was taken without being read by the server is in the buffers of the sockets.
    let mut before = usize::MAX;
    while before != written.load(Ordering::SeqCst) {
        before = written.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(before < PARTS / 2, "{before} MiB were taken");
    go.send(()).unwrap();
    assert!(reading.await.unwrap() > PARTS * MIB);
    let mut answer = [0; 12];
    reader.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    drop(writing.await.unwrap());
}

#[tokio::test]
async fn a_fetch_comes_as_it_is_made() {
    let mut script = vec![Step::Send(chunked("application/x-git-upload-pack-result"))];
    script.extend((0..32).map(|_| Step::Send(chunk(&vec![7; MIB]))));
    script.push(Step::Send(LAST_CHUNK.to_vec()));
    let upstream = Upstream::start(script).await;
    let mut client = Client::connect(&gateway(&upstream.url()), &Arc::new(with_git(&upstream)));
    let line = format!("POST /git/{}/owner/repo/git-upload-pack", upstream.address);
    client.send(&line, "", "want").await;
    assert_eq!(client.head().await.status, 200);
    let mut read = 0;
    while let Some(part) = client.part().await.unwrap() {
        assert!(part.iter().all(|byte| *byte == 7));
        read += part.len();
    }
    assert_eq!(read, 32 * MIB);
}
