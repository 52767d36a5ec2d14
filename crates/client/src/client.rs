//! The client itself: where the server is, and who asks.

use crate::{
    Error, LocalServer, Result,
    call::{Call, Repeat},
};
use reqwest::{
    Method, Url,
    header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue},
    redirect::Policy,
};
use seawall_api::{ErrorKind, http::ACCOUNT_HEADER};
use std::{fmt, net::IpAddr, os::fd::OwnedFd, sync::Arc, time::Duration};

const CONNECT: Duration = Duration::from_secs(10);

/// A client of one server. Clones share their connections.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: reqwest::Client,
    base: Url,
    local: Option<Local>,
}

/// The socket that a client connects to in place of an address.
struct Local {
    server: LocalServer,
    /// Keeps the path of the socket valid.
    _folder: OwnedFd,
}

/// The credentials that a client sends with every request.
#[derive(Clone, Default)]
pub struct Credentials {
    pub key: Option<String>,
    /// The account that an operator acts for, by its name or id.
    pub account: Option<String>,
}

impl From<Option<String>> for Credentials {
    fn from(key: Option<String>) -> Credentials {
        Credentials { key, account: None }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key.
        f.debug_struct("Credentials").field("account", &self.account).finish_non_exhaustive()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key.
        f.debug_struct("Client").field("server", &self.inner.base.as_str()).finish_non_exhaustive()
    }
}

/// Which part of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// None: as many as the server likes.
    pub limit: Option<u32>,
    /// `next` of the page before.
    pub after: Option<String>,
}

impl Page {
    pub fn first(limit: u32) -> Page {
        Page { limit: Some(limit), after: None }
    }
}

impl Client {
    /// `url` is the server's address, e.g. `http://127.0.0.1:7777`; it may have a path where a proxy wants one.
    pub fn new(url: &str, credentials: impl Into<Credentials>) -> Result<Client> {
        Client::build(address(url)?, &credentials.into(), None)
    }

    /// A client of the server of a data folder on this machine, through its socket.
    pub fn local(server: LocalServer, credentials: impl Into<Credentials>) -> Result<Client> {
        Client::build(address("http://localhost")?, &credentials.into(), Some(server))
    }

    fn build(base: Url, credentials: &Credentials, local: Option<LocalServer>) -> Result<Client> {
        let headers = headers(credentials)?;
        let mut builder = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("seawall/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            // A key must not travel.
            .redirect(Policy::none())
            .referer(false)
            // WebSockets need it, whatever another crate turns on.
            .http1_only();
        if base.scheme() == "http" {
            // Nothing is verified, so the system's certificates need not be read.
            builder = builder.tls_certs_only([]);
        }
        if is_local(&base) {
            builder = builder.no_proxy();
        }
        let mut socket = None;
        if let Some(server) = local {
            let (folder, path) = server.open()?;
            builder = builder.unix_socket(path);
            socket = Some(Local { server, _folder: folder });
        }
        let http = builder.build().map_err(|error| {
            let cause = crate::error::root(&error);
            Error::new(
                ErrorKind::Internal,
                format!("the HTTP client cannot be set up ({cause}): is ca-certificates installed?"),
            )
        })?;
        Ok(Client { inner: Arc::new(Inner { http, base, local: socket }) })
    }

    /// The server's address.
    pub fn server(&self) -> &str {
        self.inner.base.as_str()
    }

    pub(crate) fn http(&self) -> &reqwest::Client {
        &self.inner.http
    }

    /// The socket that the client connects to, if it is one.
    pub(crate) fn local_server(&self) -> Option<&LocalServer> {
        self.inner.local.as_ref().map(|local| &local.server)
    }

    pub(crate) fn base(&self) -> &Url {
        &self.inner.base
    }

    pub(crate) fn url(&self, path: &[&str]) -> Url {
        let mut url = self.inner.base.clone();
        // An address of a server always has a path.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    pub(crate) fn get(&self, path: &[&str]) -> Call {
        Call::new(self.clone(), Method::GET, self.url(path), Repeat::Always)
    }

    /// A call that changes something: it has a key of its own, so that asking twice does it once.
    pub(crate) fn change(&self, method: Method, path: &[&str]) -> Call {
        Call::new(self.clone(), method, self.url(path), Repeat::Always).with_own_key()
    }

    pub(crate) fn post(&self, path: &[&str]) -> Call {
        self.change(Method::POST, path)
    }
}

fn headers(credentials: &Credentials) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    if let Some(key) = &credentials.key {
        let mut bearer = HeaderValue::from_str(&format!("Bearer {}", key.trim())).map_err(|_| {
            Error::new(ErrorKind::Invalid, "the key has characters that no key has: was all of it copied?")
        })?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
    }
    if let Some(account) = &credentials.account {
        let named = HeaderValue::from_bytes(account.as_bytes()).map_err(|_| {
            Error::new(ErrorKind::Invalid, format!("`{account}` cannot be the name of an account"))
        })?;
        headers.insert(HeaderName::from_static(ACCOUNT_HEADER), named);
    }
    Ok(headers)
}

fn address(url: &str) -> Result<Url> {
    let wrong = |why: &str| {
        let hint = "write it as http://HOST:PORT or https://HOST";
        Error::new(ErrorKind::Invalid, format!("`{url}` is no address of a server ({why}): {hint}"))
    };
    let base = Url::parse(url.trim()).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(base.scheme(), "http" | "https") {
        return Err(wrong("it begins neither with http:// nor with https://"));
    }
    if !base.username().is_empty() || base.password().is_some() {
        return Err(wrong("a user or a password has no place in it; the key is given apart"));
    }
    if base.query().is_some() || base.fragment().is_some() {
        return Err(wrong("it goes on behind its path"));
    }
    Ok(base)
}

/// Whether an address leads to this machine.
pub fn is_on_this_machine(url: &str) -> bool {
    address(url).is_ok_and(|url| is_local(&url))
}

fn is_local(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host.ends_with(".localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        for good in ["http://127.0.0.1:7777", "https://seawall.example/base/", " http://[::1]:80 "] {
            assert!(Client::new(good, None).is_ok(), "{good}");
        }
        for bad in ["localhost:7777", "7300", "ftp://x", "http://me:pw@host", "http://host/?a=b", ""] {
            let error = Client::new(bad, None).unwrap_err();
            assert!(error.to_string().contains("http://HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn paths_are_joined_and_escaped() {
        let client = Client::new("http://host/base/", None).unwrap();
        assert_eq!(client.url(&["templates", "a/b c"]).as_str(), "http://host/base/templates/a%2Fb%20c");
        let client = Client::new("http://host", None).unwrap();
        assert_eq!(client.url(&["health"]).as_str(), "http://host/health");
    }

    #[test]
    fn this_machine_is_known() {
        for local in ["http://localhost:1", "http://127.8.0.1", "http://[::1]:7777"] {
            assert!(is_on_this_machine(local), "{local}");
        }
        for other in ["http://10.0.0.1", "https://localhost.example", "nonsense"] {
            assert!(!is_on_this_machine(other), "{other}");
        }
    }

    #[test]
    fn the_key_is_shown_nowhere() {
        let client = Client::new("http://host", Some("sw_secret".to_owned())).unwrap();
        assert!(!format!("{client:?} {:?}", client.get(&["health"])).contains("secret"));
        assert!(Client::new("http://host", Some("with\nline".to_owned())).is_err());
    }
}
