//! Files of a sandbox.

use crate::{Client, Error, Page, Result, call::Repeat};
use bytes::Bytes;
use futures::TryStream;
use reqwest::{
    Body, Method, Response, StatusCode,
    header::{CONTENT_LENGTH, ETAG, HeaderMap, RANGE},
};
use seawall_api::{
    SandboxId,
    files::EntryKind,
    http::{FileInfo, List, MakeDirectory, MovePath, Tree},
};
use std::fmt;

/// What a path is meant beneath.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// The workspace alone.
    WorkingDir,
    /// The home of the sandbox's user.
    HomeDir,
    /// The whole sandbox. Relative paths start in `/work`.
    #[default]
    Box,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::WorkingDir => "working_dir",
            Source::HomeDir => "home_dir",
            Source::Box => "box",
        })
    }
}

/// What to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListFiles {
    /// None: the workspace.
    pub path: Option<String>,
    /// None: the directory alone.
    pub depth: Option<u32>,
    pub pattern: Option<String>,
    pub kind: Option<EntryKind>,
    /// Also those whose name begins with a dot. None: as the server has it.
    pub hidden: Option<bool>,
    pub page: Page,
}

/// Which part of which file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadContent {
    pub path: String,
    pub source: Source,
    pub offset: u64,
    /// None: up to the end.
    pub length: Option<u64>,
    /// Refuse a file that is larger.
    pub max_size: Option<u64>,
}

/// Where a body goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteContent {
    pub path: String,
    /// Permission bits of the file.
    pub mode: Option<u32>,
    /// Make missing directories above it. None: as the server has it.
    pub parents: Option<bool>,
}

/// What is known of a body before it is read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContentHead {
    /// Bytes that come.
    pub size: Option<u64>,
    /// Differs when the file does.
    pub etag: Option<String>,
}

impl ContentHead {
    fn of(headers: &HeaderMap) -> ContentHead {
        let text = |value: Option<&reqwest::header::HeaderValue>| {
            value.and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let size = text(headers.get(CONTENT_LENGTH)).and_then(|size| size.parse().ok());
        ContentHead { size, etag: text(headers.get(ETAG)) }
    }
}

/// A body on its way here.
#[derive(Debug)]
pub struct Content {
    pub head: ContentHead,
    response: Response,
    left: Option<u64>,
    client: Client,
}

impl Content {
    /// The next part; none at the end. One that ends early is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let part = self.response.chunk().await;
        let part = part.map_err(|error| Error::broken(self.client.base(), &error))?;
        if let (Some(part), Some(left)) = (&part, &mut self.left) {
            *left = left.saturating_sub(part.len() as u64);
        }
        Ok(part)
    }

    /// How much of it is still to come, where that is known.
    pub fn left(&self) -> Option<u64> {
        self.left
    }

    /// All of it.
    pub async fn all(mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(part) = self.next().await? {
            body.extend_from_slice(&part);
        }
        Ok(body)
    }
}

impl Client {
    /// By name, parents first.
    pub async fn files(&self, id: SandboxId, list: &ListFiles) -> Result<List<FileInfo>> {
        let call = self
            .get(&["sandboxes", &id.to_string(), "files"])
            .maybe("path", list.path.as_deref())
            .maybe("depth", list.depth)
            .maybe("pattern", list.pattern.as_deref())
            .maybe("kind", list.kind.map(kind_word))
            .maybe("hidden", list.hidden);
        call.page(&list.page).answer().await
    }

    pub async fn tree(&self, id: SandboxId, path: &str, depth: Option<u32>) -> Result<Tree> {
        let call = self.get(&["sandboxes", &id.to_string(), "tree"]);
        call.query("path", path).maybe("depth", depth).answer().await
    }

    pub async fn remove_file(&self, id: SandboxId, path: &str, recursive: bool) -> Result<()> {
        let call = self.change(Method::DELETE, &["sandboxes", &id.to_string(), "files"]);
        call.query("path", path).query("recursive", recursive).done().await
    }

    pub async fn make_directory(&self, id: SandboxId, make: &MakeDirectory) -> Result<FileInfo> {
        self.post(&["sandboxes", &id.to_string(), "directories"]).json(make).answer().await
    }

    pub async fn move_path(&self, id: SandboxId, moved: &MovePath) -> Result<()> {
        self.post(&["sandboxes", &id.to_string(), "move"]).json(moved).done().await
    }

    /// The body of a file, as it comes.
    pub async fn content(&self, id: SandboxId, read: &ReadContent) -> Result<Content> {
        let call = self
            .get(&["sandboxes", &id.to_string(), "content"])
            .query("path", &read.path)
            .query("source", read.source)
            .maybe("max_size", read.max_size);
        let range = range(read.offset, read.length);
        let call = match &range {
            Some(range) => call.header(RANGE, range),
            None => call,
        };
        let response = call.open().await?;
        if range.is_some() && response.status() != StatusCode::PARTIAL_CONTENT {
            return Err(Error::unreadable("answer", "a part was asked for, and the whole came"));
        }
        let head = ContentHead::of(response.headers());
        Ok(Content { left: head.size, head, response, client: self.clone() })
    }

    /// What [`Client::content`] would bring, without the body.
    pub async fn content_head(&self, id: SandboxId, path: &str, source: Source) -> Result<ContentHead> {
        let url = self.url(&["sandboxes", &id.to_string(), "content"]);
        let call = crate::call::Call::new(self.clone(), Method::HEAD, url, Repeat::Always);
        let response = call.query("path", path).query("source", source).open().await?;
        Ok(ContentHead::of(response.headers()))
    }

    /// Writes a file from what a stream brings. It has the new body when this returns, or the old one.
    pub async fn write_stream<S>(&self, id: SandboxId, write: &WriteContent, body: S) -> Result<FileInfo>
    where
        S: TryStream<Ok = Bytes> + Send + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let call = self.write_call(id, write).repeat(Repeat::Never);
        let answer = call.send_body(Body::wrap_stream(body)).await?;
        serde_json::from_slice(&answer).map_err(|error| Error::unreadable("answer", error))
    }

    /// As [`Client::write_stream`], with a body that is here.
    pub async fn write_content(&self, id: SandboxId, write: &WriteContent, body: Bytes) -> Result<FileInfo> {
        self.write_call(id, write).bytes(body).answer().await
    }

    fn write_call(&self, id: SandboxId, write: &WriteContent) -> crate::call::Call {
        let call = self.change(Method::PUT, &["sandboxes", &id.to_string(), "content"]);
        let mode = write.mode.map(|mode| format!("{mode:04o}"));
        call.query("path", &write.path).maybe("mode", mode).maybe("parents", write.parents)
    }
}

fn kind_word(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::File => "file",
        EntryKind::Directory => "directory",
        EntryKind::Symlink => "symlink",
        EntryKind::Fifo => "fifo",
        EntryKind::Socket => "socket",
        EntryKind::Device => "device",
    }
}

/// None: all of it.
fn range(offset: u64, length: Option<u64>) -> Option<String> {
    match (offset, length) {
        (0, None) => None,
        (offset, None) => Some(format!("bytes={offset}-")),
        // Nothing cannot be asked for; one byte is the least.
        (offset, Some(length)) => {
            Some(format!("bytes={offset}-{}", offset.saturating_add(length.max(1)) - 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn ranges_are_inclusive() {
        assert_eq!(range(0, None), None);
        assert_eq!(range(5, None).as_deref(), Some("bytes=5-"));
        assert_eq!(range(0, Some(10)).as_deref(), Some("bytes=0-9"));
        assert_eq!(range(7, Some(0)).as_deref(), Some("bytes=7-7"));
    }

    #[test]
    fn words_are_those_of_the_api() {
        for kind in [EntryKind::File, EntryKind::Directory, EntryKind::Symlink, EntryKind::Device] {
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{}\"", kind_word(kind)));
        }
        assert_eq!(Source::WorkingDir.to_string(), "working_dir");
    }

    #[tokio::test]
    async fn a_body_comes_in_parts() {
        let head = "HTTP/1.1 206 Partial\r\netag: \"5-1\"\r\ncontent-length: 3\r\nconnection: close\r\n\r\n";
        let server = testing::serve(vec![format!("{head}abc")]).await;
        let client = Client::new(&server.url, None).unwrap();
        let read = ReadContent { path: "a b".into(), offset: 2, ..ReadContent::default() };
        let content = client.content(SandboxId::generate(), &read).await.unwrap();
        assert_eq!((content.head.size, content.head.etag.as_deref()), (Some(3), Some("\"5-1\"")));
        assert_eq!(content.all().await.unwrap(), b"abc");
        let asked = server.asked().await;
        assert!(asked[0].contains("content?path=a+b&source=box HTTP/1.1"), "{}", asked[0]);
        assert_eq!(testing::header(&asked[0], "range").as_deref(), Some("bytes=2-"));
    }

    #[tokio::test]
    async fn a_body_that_ends_early_is_an_error() {
        let cut = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\nabc";
        let server = testing::serve(vec![cut.to_owned()]).await;
        let client = Client::new(&server.url, None).unwrap();
        let read = ReadContent { path: "x".into(), ..ReadContent::default() };
        let content = client.content(SandboxId::generate(), &read).await.unwrap();
        assert!(content.all().await.is_err());
    }

    #[tokio::test]
    async fn a_stream_is_sent_as_it_comes() {
        let info = r#"{"path":"/work/x","name":"x","kind":"file","size":4,"mode":420,
            "modified_at":"2026-01-01T00:00:00Z"}"#;
        let server = testing::serve(vec![testing::answer(info)]).await;
        let client = Client::new(&server.url, None).unwrap();
        let parts = ["ab", "cd"].map(|part| Ok::<_, std::io::Error>(Bytes::from(part)));
        let write = WriteContent { path: "x".into(), mode: Some(0o644), parents: Some(true) };
        let body = futures::stream::iter(parts);
        assert_eq!(client.write_stream(SandboxId::generate(), &write, body).await.unwrap().size, 4);
        let asked = server.asked().await;
        assert!(asked[0].starts_with("PUT ") && asked[0].contains("mode=0644&parents=true"), "{}", asked[0]);
    }
}
