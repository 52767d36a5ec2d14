//! Where the model APIs are, and the keys for them.

use crate::answer::Refusal;
use hyper::{
    HeaderMap, StatusCode,
    header::{AUTHORIZATION, HeaderName, HeaderValue},
};
use reqwest::Url;
use seawall_api::ErrorKind;
use seawall_core::{Error, Result, agents::ModelApi, ports::gateway::Secret};

const ANTHROPIC: &str = "https://api.anthropic.com";
const OPENAI: &str = "https://api.openai.com";

#[derive(Debug, Clone)]
pub struct GatewaySettings {
    pub anthropic: Upstream,
    pub openai: Upstream,
}

/// A model API.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// What `/v1` follows.
    pub base_url: String,
    /// Needed at the usual address; elsewhere there may be none.
    pub key: Option<Secret>,
    /// The most tokens of an answer whose request says nothing of that, for accounts whose tokens are limited.
    pub max_output_tokens: u64,
}

impl Upstream {
    /// What models of today answer at most in one request of an agent, nearly always.
    pub const MAX_OUTPUT_TOKENS: u64 = 32 << 10;

    pub fn new(base_url: impl Into<String>, key: Option<Secret>) -> Upstream {
        Upstream { base_url: base_url.into(), key, max_output_tokens: Upstream::MAX_OUTPUT_TOKENS }
    }
}

impl Default for GatewaySettings {
    fn default() -> GatewaySettings {
        GatewaySettings { anthropic: Upstream::new(ANTHROPIC, None), openai: Upstream::new(OPENAI, None) }
    }
}

/// An [`Upstream`] that was checked.
#[derive(Debug)]
pub struct Target {
    api: ModelApi,
    base: String,
    /// Marked as secret: it is not shown, not even by accident.
    key: Option<HeaderValue>,
    most_output: u64,
}

/// The name of an API, for people.
pub fn name(api: ModelApi) -> &'static str {
    match api {
        ModelApi::Anthropic => "Anthropic",
        ModelApi::OpenAi => "OpenAI",
    }
}

/// The name of an API in settings, and in paths.
pub fn word(api: ModelApi) -> &'static str {
    match api {
        ModelApi::Anthropic => "anthropic",
        ModelApi::OpenAi => "openai",
    }
}

impl Target {
    pub fn new(api: ModelApi, upstream: &Upstream) -> Result<Target> {
        let base = upstream.base_url.trim().trim_end_matches('/');
        // Many programs want it with the version; both are understood.
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let fits = Url::parse(base).is_ok_and(|url| is_web(&url) && url.query().is_none());
        if !fits {
            let word = word(api);
            let message = format!(
                "the address of {} must be one of http or https, e.g. {}: see [models.{word}] base_url",
                name(api),
                usual(api)
            );
            return Err(Error::invalid(message));
        }
        let (key, most_output) = (key(api, upstream.key.as_ref())?, upstream.max_output_tokens);
        Ok(Target { api, base: base.to_owned(), key, most_output })
    }

    /// See [`Upstream::max_output_tokens`].
    pub fn most_output(&self) -> u64 {
        self.most_output
    }

    /// Where a path of the API is.
    pub fn url(&self, path: &str, query: Option<&str>) -> Result<Url, Refusal> {
        let text = match query {
            Some(query) => format!("{}{path}?{query}", self.base),
            None => format!("{}{path}", self.base),
        };
        let unfit = |_| Refusal::new(StatusCode::BAD_REQUEST, "the query of this address makes no sense");
        Url::parse(&text).map_err(unfit)
    }

    /// Adds the key to what goes out.
    pub fn sign(&self, headers: &mut HeaderMap) -> Result<(), Refusal> {
        self.check().map_err(|error| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
        if let Some(key) = &self.key {
            let header = match self.api {
                ModelApi::Anthropic => HeaderName::from_static("x-api-key"),
                ModelApi::OpenAi => AUTHORIZATION,
            };
            headers.insert(header, key.clone());
        }
        Ok(())
    }

    pub fn check(&self) -> Result<()> {
        if self.key.is_some() || self.base != usual(self.api) {
            return Ok(());
        }
        let (name, word) = (name(self.api), word(self.api));
        let variable = word.to_ascii_uppercase();
        let message = format!(
            "the server has no key for {name}: set {variable}_API_KEY or [models.{word}] key in seawall.toml"
        );
        Err(Error::new(ErrorKind::Denied, message))
    }
}

pub fn is_web(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https") && url.has_host()
}

fn usual(api: ModelApi) -> &'static str {
    match api {
        ModelApi::Anthropic => ANTHROPIC,
        ModelApi::OpenAi => OPENAI,
    }
}

fn key(api: ModelApi, key: Option<&Secret>) -> Result<Option<HeaderValue>> {
    let Some(key) = key.map(|key| key.reveal().trim()).filter(|key| !key.is_empty()) else {
        return Ok(None);
    };
    let value = match api {
        ModelApi::Anthropic => HeaderValue::from_str(key),
        ModelApi::OpenAi => HeaderValue::from_str(&format!("Bearer {key}")),
    };
    // Without the cause: it could quote.
    let mut value = value.map_err(|_| {
        let message = format!("the key for {} has characters that no key has; copy it anew", name(api));
        Error::invalid(message)
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(api: ModelApi, base_url: &str, key: Option<&str>) -> Result<Target> {
        Target::new(api, &Upstream::new(base_url, key.map(Secret::new)))
    }

    #[test]
    fn a_missing_key_is_told_with_what_to_do() {
        let error = target(ModelApi::Anthropic, ANTHROPIC, Some(" \n")).unwrap().check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert_eq!(
            error.to_string(),
            "the server has no key for Anthropic: set ANTHROPIC_API_KEY or [models.anthropic] key in seawall.toml"
        );
        let error =
            target(ModelApi::OpenAi, "https://api.openai.com/v1/", None).unwrap().check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the server has no key for OpenAI: set OPENAI_API_KEY or [models.openai] key in seawall.toml"
        );
    }

    #[test]
    fn elsewhere_a_key_may_be_missing() {
        assert!(target(ModelApi::Anthropic, "http://127.0.0.1:1/x/", None).unwrap().check().is_ok());
        assert!(target(ModelApi::OpenAi, OPENAI, Some("sk")).unwrap().check().is_ok());
    }

    #[test]
    fn addresses_that_are_none_are_refused() {
        for base_url in
            ["", "api.openai.com", "ftp://x", "file:///etc/passwd", "https://", "https://x/?key=1"]
        {
            let error = target(ModelApi::OpenAi, base_url, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{base_url}");
            assert!(error.to_string().contains("[models.openai] base_url"), "{error}");
        }
    }

    #[test]
    fn no_key_is_shown() {
        let target = target(ModelApi::OpenAi, OPENAI, Some("sk-secret\n")).unwrap();
        assert!(!format!("{target:?}").contains("sk-secret"), "{target:?}");
        let error = super::key(ModelApi::OpenAi, Some(&Secret::new("sk-\nsecret"))).unwrap_err();
        assert!(!error.chain().contains("secret"), "{}", error.chain());
    }
}
