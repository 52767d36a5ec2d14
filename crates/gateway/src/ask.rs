//! What a request asks of a model, and whether the account may ask for it.

use crate::answer::Refusal;
use hyper::StatusCode;
use seawall_core::ports::gateway::ModelAccess;
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
    pub max_tokens: Number,
    pub max_completion_tokens: Number,
    pub max_output_tokens: Number,
    /// `n`: how many answers chat completions make.
    pub answers: Number,
}

/// A field that must be a whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Number {
    #[default]
    None,
    /// `null`, at this byte of the body.
    Null {
        at: usize,
    },
    Is(u64),
    Unfit,
}

impl Ask {
    pub fn parse(body: &[u8]) -> Result<Ask, Refusal> {
        let unfit = |message: &str| Refusal::new(StatusCode::BAD_REQUEST, message);
        // Without the parser's words: they could quote the body, and are logged.
        let Ok(Fields([model, stream, options, background, max, max_completion, max_output, n])) =
            serde_json::from_slice(body)
        else {
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
            max_tokens: Number::read(max, body),
            max_completion_tokens: Number::read(max_completion, body),
            max_output_tokens: Number::read(max_output, body),
            answers: Number::read(n, body),
        })
    }

    /// Whether the account may use the model.
    pub fn check_model(&self, models: &ModelAccess) -> Result<(), Refusal> {
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
        Ok(())
    }

    /// Refuses what would not be counted, for accounts whose tokens are limited. `chat`: by chat completions.
    pub fn check_counted(&self, chat: bool) -> Result<(), Refusal> {
        if self.background || (chat && self.stream && !self.include_usage) {
            let message = "this account's tokens are limited (settings `tokens_per_day`, `tokens_per_month`): a stream \
                           needs stream_options.include_usage, and background must be false";
            return Err(Refusal::new(StatusCode::BAD_REQUEST, message));
        }
        Ok(())
    }
}

impl Number {
    /// `raw` is a part of `body`.
    fn read(raw: Option<&RawValue>, body: &[u8]) -> Number {
        let Some(raw) = raw.map(RawValue::get) else { return Number::None };
        match raw {
            "null" => Number::Null { at: (raw.as_ptr() as usize).saturating_sub(body.as_ptr() as usize) },
            _ => raw.parse().map_or(Number::Unfit, Number::Is),
        }
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
struct Fields<'a>([Option<&'a RawValue>; WANTED.len()]);

const WANTED: [&str; 8] = [
    "model",
    "stream",
    "stream_options",
    "background",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
];

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
        let mut values: [Option<&'de RawValue>; WANTED.len()] = [None; WANTED.len()];
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
        let counted = |body: &str, chat| Ask::parse(body.as_bytes()).unwrap().check_counted(chat).is_ok();
        let silent = r#"{"model":"m","stream":true}"#;
        let told = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#;
        let later = r#"{"model":"m","background":true}"#;
        assert!(!counted(silent, true) && !counted(later, false));
        assert!(counted(told, true) && counted(silent, false));
    }
}
