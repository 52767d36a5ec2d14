//! Git's own HTTP, to the one repository that a sandbox may reach.
//!
//! The box has it under `/git/HOST/PATH`. What it asks for must be that, byte by byte: no path is cleaned up,
//! so none can be read in two ways. Packs can be gigabytes, so bodies stream, in both directions.

use crate::{
    answer::{Answer, Refusal, Shape},
    exchange::Exchange,
    gateway::Inner,
    headers,
    settings::is_web,
    upstream::{self, Activity},
};
use futures::StreamExt;
use http_body_util::BodyExt;
use hyper::{
    Method, Request, StatusCode,
    body::{Body as _, Incoming},
    header::CONTENT_LENGTH,
    http::request::Parts,
};
use reqwest::Url;
use seawall_core::ports::gateway::{Access, GitAccess};
use std::sync::Arc;

/// Whom tokens of the usual hosts belong to; others take any name.
const USER: &str = "x-access-token";

/// A step of git's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    /// What there is to fetch.
    FetchRefs,
    Fetch,
    /// What there is to push to.
    PushRefs,
    Push,
}

/// A repository, as its address says.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    host: String,
    /// Without `.git`, with a slash in front.
    path: String,
    /// What a service's path is added to.
    url: String,
}

pub async fn answer(gateway: &Inner, access: Arc<Access>, request: Request<Incoming>) -> Answer {
    let (parts, body) = request.into_parts();
    let found = access.git.as_ref().ok_or_else(no_repository).and_then(|git| find(git, &parts));
    let route = found.as_ref().map_or("git", |(_, service)| service.name());
    let exchange = Exchange::new(access, route);
    match forward(gateway, &exchange, found, parts, body).await {
        Ok(response) => {
            let passed = headers::from_git(response.headers());
            exchange.pass(response, passed, None)
        }
        Err(refusal) => exchange.refuse(refusal, Shape::Text),
    }
}

async fn forward(
    gateway: &Inner,
    exchange: &Exchange,
    found: Result<(Place, Service), Refusal>,
    parts: Parts,
    body: Incoming,
) -> Result<reqwest::Response, Refusal> {
    let (place, service) = found?;
    let url = format!("{}{}", place.url, service.suffix());
    let mut request = gateway.client.request(parts.method, url).headers(headers::to_git(&parts.headers));
    let token = exchange.access.git.as_ref().and_then(|git| git.token.as_ref());
    if let Some(token) = token {
        request = request.basic_auth(USER, Some(token.reveal()));
    }
    let activity = Activity::begin();
    if service.has_body() {
        // Not every server takes bodies of unknown length.
        if let Some(length) = body.size_hint().exact() {
            request = request.header(CONTENT_LENGTH, length);
        }
        let moved = activity.clone();
        let parts = body.into_data_stream().inspect(move |_| moved.touch());
        request = request.body(reqwest::Body::wrap_stream(parts));
    }
    let who = format!("seawall: {}", place.host);
    let response = upstream::send(request, &who, &activity).await?;
    // Git would ask the box for a password, and there is nobody to give one.
    if response.status() == StatusCode::UNAUTHORIZED {
        let why = match token {
            Some(_) => "does not take the server's token for it",
            None => "wants a token, and the server has none for it",
        };
        return Err(refused(format!("{} {why}: {}", place.host, place.shown())));
    }
    Ok(response)
}

/// Where a request would go, where the sandbox may make it.
#[cfg(feature = "fuzzing")]
pub fn reached(git: &GitAccess, method: &Method, uri: &hyper::Uri) -> Option<String> {
    let request = Request::builder().method(method).uri(uri).body(()).ok()?;
    let (place, service) = find(git, &request.into_parts().0).ok()?;
    Some(format!("{}{}", place.url, service.suffix()))
}

/// What a request is for, where the sandbox may do it.
fn find(git: &GitAccess, parts: &Parts) -> Result<(Place, Service), Refusal> {
    let Some(place) = Place::parse(&git.url) else {
        return Err(refused(
            "the repository of this sandbox has no address like https://HOST/PATH".to_owned(),
        ));
    };
    let service = place.rest(parts.uri.path()).and_then(|rest| Service::find(parts, rest));
    match service {
        None => Err(refused(format!("this sandbox may reach {} only", place.shown()))),
        Some(Service::PushRefs | Service::Push) if !git.may_push => {
            Err(refused(format!("this sandbox may read {}, and not push to it", place.shown())))
        }
        Some(service) => Ok((place, service)),
    }
}

impl Place {
    fn parse(address: &str) -> Option<Place> {
        let mut url = Url::parse(address).ok().filter(is_web)?;
        // What the server knows of a name and a password is not for here.
        url.set_username("").ok()?;
        url.set_password(None).ok()?;
        url.set_query(None);
        url.set_fragment(None);
        let host = match url.port() {
            Some(port) => format!("{}:{port}", url.host_str()?),
            None => url.host_str()?.to_owned(),
        };
        let path = url.path().trim_end_matches('/');
        let path = path.strip_suffix(".git").unwrap_or(path).to_owned();
        let fits = path.len() > 1 && !path.ends_with('/') && !path.contains("//");
        let url = url.as_str().trim_end_matches('/').to_owned();
        fits.then_some(Place { host, path, url })
    }

    /// What follows the repository in a path of the box.
    fn rest<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = path.strip_prefix("/git/")?.strip_prefix(&self.host)?.strip_prefix(&self.path)?;
        Some(rest.strip_prefix(".git").unwrap_or(rest))
    }

    fn shown(&self) -> String {
        format!("{}{}", self.host, self.path)
    }
}

impl Service {
    fn find(parts: &Parts, rest: &str) -> Option<Service> {
        let (get, post) = (parts.method == Method::GET, parts.method == Method::POST);
        match (rest, parts.uri.query()) {
            ("/info/refs", Some("service=git-upload-pack")) if get => Some(Service::FetchRefs),
            ("/info/refs", Some("service=git-receive-pack")) if get => Some(Service::PushRefs),
            ("/git-upload-pack", None) if post => Some(Service::Fetch),
            ("/git-receive-pack", None) if post => Some(Service::Push),
            _ => None,
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Service::FetchRefs => "/info/refs?service=git-upload-pack",
            Service::PushRefs => "/info/refs?service=git-receive-pack",
            Service::Fetch => "/git-upload-pack",
            Service::Push => "/git-receive-pack",
        }
    }

    fn has_body(self) -> bool {
        matches!(self, Service::Fetch | Service::Push)
    }

    fn name(self) -> &'static str {
        match self {
            Service::FetchRefs => "git/info/refs (fetch)",
            Service::PushRefs => "git/info/refs (push)",
            Service::Fetch => "git/git-upload-pack",
            Service::Push => "git/git-receive-pack",
        }
    }
}

fn no_repository() -> Refusal {
    refused("this sandbox has no repository that it may reach".to_owned())
}

/// With the name in front: git shows it among its own lines.
fn refused(message: String) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, format!("seawall: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_core::ports::gateway::Secret;

    fn git(url: &str) -> GitAccess {
        GitAccess { url: url.to_owned(), token: Some(Secret::new("ghs_secret")), may_push: true }
    }

    fn found(url: &str, method: &str, uri: &str) -> Result<String, String> {
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        let found = find(&git(url), &request.into_parts().0);
        found
            .map(|(place, service)| format!("{}{}", place.url, service.suffix()))
            .map_err(|refusal| refusal.message)
    }

    #[test]
    fn the_repository_is_found_with_and_without_its_ending() {
        let fetch = "info/refs?service=git-upload-pack";
        for (url, uri, expected) in [
            ("https://github.com/o/r.git", "/git/github.com/o/r.git/", "https://github.com/o/r.git/"),
            ("https://github.com/o/r.git", "/git/github.com/o/r/", "https://github.com/o/r.git/"),
            ("https://github.com/o/r", "/git/github.com/o/r.git/", "https://github.com/o/r/"),
            ("https://GitHub.com:443/o/r/", "/git/github.com/o/r/", "https://github.com/o/r/"),
            ("http://127.0.0.1:3000/o/r.git", "/git/127.0.0.1:3000/o/r/", "http://127.0.0.1:3000/o/r.git/"),
            (
                "https://u:p@git.example/a/b/c.git",
                "/git/git.example/a/b/c/",
                "https://git.example/a/b/c.git/",
            ),
        ] {
            let found = found(url, "GET", &format!("{uri}{fetch}"));
            assert_eq!(found, Ok(format!("{expected}{fetch}")), "{url} {uri}");
        }
    }

    #[test]
    fn no_trick_reaches_another() {
        for (method, uri) in [
            ("GET", "/git/github.com/other/repo.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/github.com/owner/other.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/gitlab.com/owner/repo.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/github.com.evil.example/owner/repo.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/github.com:443/owner/repo.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/x@github.com/owner/repo.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/GITHUB.COM/owner/repo.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/github.com/owner/repo2/info/refs?service=git-upload-pack"),
            ("GET", "/git/github.com/owner/repo.git.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/github.com/owner/repo.wiki.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/github.com/owner/repo.git/../other.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/github.com/owner/repo.git/%2e%2e/other.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/github.com/owner/repo.git/..%2fother.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/github.com/owner/../other/repo.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/github.com/%6fwner/repo.git/info/refs?service=git-upload-pack"),
            ("GET", "/git//github.com/owner/repo.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/github.com//owner/repo.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/github.com/owner/repo.git//info/refs?service=git-upload-pack"),
            ("GET", "/git/github.com/owner/repo.git/info/refs/?service=git-upload-pack"),
            ("GET", "/git/github.com/owner/repo.git/info/refs%00?service=git-upload-pack"),
            ("GET", "/git/github.com/owner/repo.git/info/refs"),
            ("GET", "/git/github.com/owner/repo.git/info/refs?"),
            ("GET", "/git/github.com/owner/repo.git/info/refs?service=git-upload-archive"),
            ("GET", "/git/github.com/owner/repo.git/info/refs?service=git-upload-pack&x=1"),
            ("GET", "/git/github.com/owner/repo.git/info/refs?x=1&service=git-upload-pack"),
            ("GET", "/git/github.com/owner/repo.git/info/refs?service=git%2dupload-pack"),
            ("POST", "/git/github.com/owner/repo.git/info/refs?service=git-upload-pack"),
            ("GET", "/git/github.com/owner/repo.git/git-upload-pack"),
            ("PUT", "/git/github.com/owner/repo.git/git-upload-pack"),
            ("POST", "/git/github.com/owner/repo.git/git-upload-pack?x=1"),
            ("POST", "/git/github.com/owner/repo.git/git-upload-archive"),
            ("GET", "/git/github.com/owner/repo.git/HEAD"),
            ("GET", "/git/github.com/owner/repo.git/objects/info/packs"),
            ("GET", "/git/github.com/owner/repo.git/archive/main.zip"),
            ("GET", "/git/github.com/owner/repo.git"),
            ("GET", "/git/github.com/owner/repo"),
            ("GET", "/git/github.com"),
            ("GET", "/git/"),
        ] {
            let expected = "seawall: this sandbox may reach github.com/owner/repo only".to_owned();
            assert_eq!(
                found("https://github.com/owner/repo.git", method, uri),
                Err(expected),
                "{method} {uri}"
            );
        }
    }

    #[test]
    fn addresses_that_are_no_repository() {
        for url in
            ["", "git@github.com:o/r.git", "ssh://git@github.com/o/r", "file:///srv/r.git", "https://h"]
        {
            let refused = found(url, "GET", "/git/h/info/refs?service=git-upload-pack").unwrap_err();
            assert!(refused.contains("no address like"), "{url}: {refused}");
        }
    }

    #[test]
    fn who_may_not_push_may_read() {
        let read_only = GitAccess { may_push: false, ..git("https://h/o/r") };
        for (method, uri, may) in [
            ("GET", "/git/h/o/r/info/refs?service=git-upload-pack", true),
            ("POST", "/git/h/o/r/git-upload-pack", true),
            ("GET", "/git/h/o/r/info/refs?service=git-receive-pack", false),
            ("POST", "/git/h/o/r/git-receive-pack", false),
        ] {
            let request = Request::builder().method(method).uri(uri).body(()).unwrap();
            assert_eq!(find(&read_only, &request.into_parts().0).is_ok(), may, "{uri}");
        }
    }
}
