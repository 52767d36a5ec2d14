//! What a request asks of a model, and whether the account may ask for it.

use crate::answer::Refusal;
use hyper::StatusCode;
use seawall_core::ports::gateway::{Meter, ModelAccess};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};
use std::fmt;

/// Longer than any model's name.
const LONGEST_NAME: usize = 200;

/// The fields of a request that matter here.
#[derive(Debug, PartialEq, Eq)]
pub struct Ask {
    pub model: String,
    stream: bool,
    /// `stream_options.include_usage`, without which streams of chat completions tell nothing.
    include_usage: bool,
    /// Answered later, on a way that does not pass here.
    background: bool,
}

impl Ask {
    pub fn parse(body: &[u8]) -> Result<Ask, Refusal> {
        let unfit = |message: &str| Refusal::new(StatusCode::BAD_REQUEST, message);
        // Without the parser's words: they could quote the body, and are logged.
        let Ok(Fields([model, stream, options, background])) = serde_json::from_slice(body) else {
            return Err(unfit(
                "the body must be a JSON object, not compressed, with a `model`, and each field once",
            ));
        };
        let Some(model) = model.and_then(text) else {
            return Err(unfit("the body has no `model`, or one that is no text"));
        };
        let length = 1..=LONGEST_NAME;
        if !length.contains(&model.len()) || !model.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(unfit("the `model` is no name of a model: letters, digits and signs, no spaces"));
        }
        Ok(Ask {
            model,
            stream: stream.is_some_and(is_true),
            include_usage: options.is_some_and(includes_usage),
            background: background.is_some_and(is_true),
        })
    }

    /// Whether the account may ask for it now. `chat`: by chat completions.
    pub fn permit(&self, models: &ModelAccess, meter: &Meter, chat: bool) -> Result<(), Refusal> {
        let model = &self.model;
        let forbidden = |setting: &str| {
            let message = format!(
                "the model {model} is not allowed here: the account's setting `{setting}` excludes it"
            );
            Err(Refusal::new(StatusCode::FORBIDDEN, message))
        };
        let among = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, model));
        if among(&models.denied) {
            return forbidden("models_denied");
        }
        if models.allowed.as_deref().is_some_and(|allowed| !among(allowed)) {
            return forbidden("models");
        }
        match models.tokens_left {
            Some(left) => self.permit_of(left, meter, chat),
            None => Ok(()),
        }
    }

    fn permit_of(&self, left: u64, meter: &Meter, chat: bool) -> Result<(), Refusal> {
        let used = meter.so_far().usage;
        let used = used.input_tokens.saturating_add(used.output_tokens).saturating_add(used.cache_tokens);
        if used >= left {
            let message = "the account has used its tokens of today (setting `tokens_per_day`); \
                           they begin anew at midnight UTC";
            return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, message));
        }
        if self.background || (chat && self.stream && !self.include_usage) {
            let message = "this account's tokens are counted (setting `tokens_per_day`): a stream needs \
                           stream_options.include_usage, and background must be false";
            return Err(Refusal::new(StatusCode::BAD_REQUEST, message));
        }
        Ok(())
    }
}

/// Whether a text is as a pattern says, where `*` is any text.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut at, mut read) = (0, 0);
    // Behind the last `*`, and how far the text was read when it was met.
    let mut star: Option<(usize, usize)> = None;
    while let Some(byte) = text.get(read) {
        match (pattern.get(at), star) {
            (Some(b'*'), _) => {
                at += 1;
                star = Some((at, read));
            }
            (Some(wanted), _) if wanted == byte => {
                at += 1;
                read += 1;
            }
            // The `*` takes one more.
            (_, Some((behind, from))) => {
                at = behind;
                read = from + 1;
                star = Some((behind, read));
            }
            (_, None) => return false,
        }
    }
    pattern.iter().skip(at).all(|byte| *byte == b'*')
}

/// The values of [`WANTED`].
struct Fields<'a>([Option<&'a RawValue>; 4]);

const WANTED: [&str; 4] = ["model", "stream", "stream_options", "background"];

struct FieldsVisitor;

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut values: [Option<&'de RawValue>; 4] = [None; 4];
        while let Some(key) = map.next_key::<String>()? {
            let named = WANTED.iter().zip(&mut values).find(|(name, _)| name.eq_ignore_ascii_case(&key));
            match named {
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
                Some((name, value)) if *name == key && value.is_none() => *value = Some(map.next_value()?),
                // Whoever reads the body after us may take the other one.
                Some(_) => return Err(A::Error::custom("a field is there twice, or in capitals")),
            }
        }
        Ok(Fields(values))
    }
}

fn text(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

fn is_true(raw: &RawValue) -> bool {
    raw.get() == "true"
}

fn includes_usage(options: &RawValue) -> bool {
    let options: Option<Value> = serde_json::from_str(options.get()).ok();
    options.and_then(|options| options.get("include_usage")?.as_bool()).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_api::conversation::Usage;
    use seawall_core::agents::ModelApi;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("claude-opus-4-1", "claude-opus-4-1", true),
            ("claude-opus-4-1", "claude-opus-4-12", false),
            ("claude-*", "claude-", true),
            ("claude-*", "Claude-opus", false),
            ("*", "anything", true),
            ("*opus*", "claude-opus-4", true),
            ("*opus", "claude-opus-4", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("**", "x", true),
            ("", "x", false),
            ("gpt-?", "gpt-5", false),
            ("x*", "", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
        let slow = format!("{}b", "*a".repeat(50));
        assert!(!matches(&slow, &"a".repeat(200)));
    }

    #[test]
    fn the_model_is_found_wherever_it_stands() {
        for body in [
            r#"{"model":"m-1"}"#,
            r#" {"messages":[{"model":"other","model":"twice"}],"model" : "m-1","stream":null}"#,
            r#"{"model":"m\u002d1","x":{"y":[1,2,{}]}}"#,
        ] {
            assert_eq!(Ask::parse(body.as_bytes()).unwrap().model, "m-1", "{body}");
        }
    }

    #[test]
    fn bodies_that_can_be_read_in_two_ways_are_refused() {
        for body in [
            "",
            "model",
            "[]",
            r#"["m-1"]"#,
            "{}",
            r#"{"model":1}"#,
            r#"{"model":null}"#,
            r#"{"model":""}"#,
            r#"{"model":"m 1"}"#,
            r#"{"model":"m-1\n"}"#,
            r#"{"model":"mödel"}"#,
            r#"{"model":"m-1","model":"m-2"}"#,
            r#"{"model":"m-1","Model":"m-2"}"#,
            r#"{"MODEL":"m-1"}"#,
            r#"{"model":"m-1"} {"model":"m-2"}"#,
            r#"{"model":"m-1""#,
        ] {
            let refusal = Ask::parse(body.as_bytes()).unwrap_err();
            assert_eq!(refusal.status, StatusCode::BAD_REQUEST, "{body}");
        }
        assert!(Ask::parse(b"{\"model\":\"m\",\"x\":\"\xff").is_err());
        assert!(Ask::parse(format!("{{\"model\":\"{}\"}}", "m".repeat(201)).as_bytes()).is_err());
        // Deep, and no stack is used up.
        assert!(Ask::parse(format!("{{\"x\":{}", "[".repeat(1 << 20)).as_bytes()).is_err());
    }

    #[test]
    fn what_would_not_be_counted_is_refused_where_tokens_are_limited() {
        let mut models =
            ModelAccess { api: ModelApi::OpenAi, allowed: None, denied: Vec::new(), tokens_left: None };
        let meter = Meter::default();
        let mut permitted = |left, body: &str, chat| {
            models.tokens_left = left;
            Ask::parse(body.as_bytes()).unwrap().permit(&models, &meter, chat).is_ok()
        };
        let silent = r#"{"model":"m","stream":true}"#;
        let told = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#;
        let later = r#"{"model":"m","background":true}"#;
        assert!(permitted(None, silent, true) && permitted(None, later, false));
        assert!(!permitted(Some(9), silent, true) && !permitted(Some(9), later, false));
        assert!(permitted(Some(9), told, true) && permitted(Some(9), silent, false));
    }

    #[test]
    fn every_token_counts_towards_the_limit() {
        let mut models =
            ModelAccess { api: ModelApi::Anthropic, allowed: None, denied: Vec::new(), tokens_left: Some(6) };
        let ask = Ask::parse(br#"{"model":"m"}"#).unwrap();
        let meter = Meter::default();
        meter.add(&Usage { input_tokens: 1, output_tokens: 2, cache_tokens: 3 });
        assert_eq!(ask.permit(&models, &meter, false).unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        models.tokens_left = Some(7);
        assert!(ask.permit(&models, &meter, false).is_ok());
        models.tokens_left = Some(0);
        assert!(ask.permit(&models, &Meter::default(), false).is_err());
    }
}
