//! How many tokens a request may use, before it is sent.
//!
//! The input is estimated from the body's bytes. Two bytes of JSON for a token is more than tokenizers need for
//! prose (about four), for code (about three) and for most other scripts and random letters (about two); only text
//! made for it, of signs and digits alone, needs up to one. Images count by number, because their cost does not
//! depend on their bytes. The output is bounded by the request itself, or by what is added to it
//! ([`Estimate::bounded_body`]).
//!
//! Some input is not in the body: files and pages that the API fetches, stored conversations, results of tools that
//! run at the API. Such a request reserves [`ELSEWHERE`] tokens or all that are left, so that few of them are in
//! flight at a time. What an answer used is charged in full in any case.

use crate::{
    answer::Refusal,
    ask::{Ask, Number},
};
use bytes::Bytes;
use hyper::StatusCode;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

const BYTES_PER_TOKEN: u64 = 2;
/// The most that an API charges for one image.
const IMAGE: u64 = 8 << 10;
/// What is reserved where input is not in the body: the usual length of a model's context.
const ELSEWHERE: u64 = 200_000;

/// Where the API of a route says how much a model may answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `max_tokens` of messages.
    Messages,
    /// `max_output_tokens` of responses.
    Responses,
    /// `max_completion_tokens` of chat completions, or `max_tokens` of old ones, for each of `n` answers.
    Chat,
}

impl Limit {
    fn field(self) -> &'static str {
        match self {
            Limit::Messages => "max_tokens",
            Limit::Responses => "max_output_tokens",
            Limit::Chat => "max_completion_tokens",
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Estimate {
    limit: Limit,
    pub input: u64,
    /// The most that each answer may have. `None` where the request says nothing.
    output: Option<u64>,
    answers: u64,
    /// Whether there is input that is not in the body.
    elsewhere: bool,
}

impl Estimate {
    pub fn new(body: &[u8], ask: &Ask, limit: Limit) -> Result<Estimate, Refusal> {
        let named = match limit {
            Limit::Messages => [(limit.field(), ask.max_tokens), ("", Number::None)],
            Limit::Responses => [(limit.field(), ask.max_output_tokens), ("", Number::None)],
            Limit::Chat => [(limit.field(), ask.max_completion_tokens), ("max_tokens", ask.max_tokens)],
        };
        let mut output = None;
        for (name, number) in named {
            output = output.max(number.value(name)?);
        }
        let answers = match limit {
            Limit::Chat => ask.answers.value("n")?.unwrap_or(1).max(1),
            _ => 1,
        };
        let found = Found::in_body(body);
        let text = (body.len() as u64).saturating_sub(found.image_bytes).div_ceil(BYTES_PER_TOKEN);
        let input = text.saturating_add(found.images.saturating_mul(IMAGE));
        Ok(Estimate { limit, input, output, answers, elsewhere: found.elsewhere })
    }

    /// What has to be reserved at least, and what shall be. `most_output` is for requests that say nothing.
    pub fn wanted(&self, most_output: u64) -> (u64, u64) {
        let with = |output: u64| self.input.saturating_add(output.saturating_mul(self.answers));
        let (least, most) = match self.output {
            Some(output) => (with(output), with(output)),
            None => (with(1), with(most_output.max(1))),
        };
        (least, if self.elsewhere { most.max(ELSEWHERE) } else { most })
    }

    /// What all answers together may have, of a request for which `reserved` tokens are.
    pub fn output(&self, reserved: u64, most_output: u64) -> u64 {
        let each = match self.output {
            Some(output) => output,
            None => (reserved.saturating_sub(self.input) / self.answers).clamp(1, most_output.max(1)),
        };
        each.saturating_mul(self.answers)
    }

    /// The body with a bound for its answers, where it had none. `ask` was read from it.
    pub fn bounded_body(&self, body: Bytes, ask: &Ask, output: u64) -> Bytes {
        if self.output.is_some() {
            return body;
        }
        let each = output / self.answers;
        let null_at = match self.limit {
            Limit::Messages => ask.max_tokens.null_at(),
            Limit::Responses => ask.max_output_tokens.null_at(),
            Limit::Chat => ask.max_completion_tokens.null_at(),
        };
        let (at, new, skip) = match null_at {
            Some(at) => (at, each.to_string(), "null".len()),
            // Behind the first brace: a body that was read is an object, and has at least its model.
            None => {
                let brace = body.iter().position(|byte| *byte == b'{').map_or(0, |brace| brace + 1);
                (brace, format!("\"{}\":{each},", self.limit.field()), 0)
            }
        };
        let rest = body.get(at + skip..).unwrap_or_default();
        [body.get(..at).unwrap_or_default(), new.as_bytes(), rest].concat().into()
    }
}

impl Number {
    fn value(self, name: &str) -> Result<Option<u64>, Refusal> {
        match self {
            Number::None | Number::Null { .. } => Ok(None),
            Number::Is(number) => Ok(Some(number)),
            Number::Unfit => {
                let message = format!("`{name}` must be a whole number: this account's tokens are limited");
                Err(Refusal::new(StatusCode::BAD_REQUEST, message))
            }
        }
    }

    fn null_at(self) -> Option<usize> {
        match self {
            Number::Null { at } => Some(at),
            _ => None,
        }
    }
}

/// What a body has besides text.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    images: u64,
    image_bytes: u64,
    elsewhere: bool,
}

impl Found {
    /// A body that is nested too deeply to be looked through may have anything.
    fn in_body(body: &[u8]) -> Found {
        let mut found = Found::default();
        let mut json = serde_json::Deserializer::from_slice(body);
        match (Walk { place: Place::Body, found: &mut found }).deserialize(&mut json) {
            Ok(()) => found,
            Err(_) => Found { elsewhere: true, ..Found::default() },
        }
    }
}

/// Where in a request a value is. Only what an API reads as an image is one: the same object as an argument of a
/// tool is text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Body,
    /// Messages, blocks of a message, blocks of a tool's result.
    Items,
    Item,
    /// `source` of an Anthropic block.
    Source,
    /// `image_url` of an OpenAI block.
    ImageUrl,
    Tools,
    Tool,
}

/// Fields of a request that name what the API has stored, or reaches itself.
const ELSEWHERE_FIELDS: [&str; 5] =
    ["previous_response_id", "conversation", "prompt", "container", "mcp_servers"];

/// Fields of a block that name a file.
const FILE_FIELDS: [&str; 3] = ["file_id", "file_url", "file_data"];

/// Tools that the agent runs itself, by the beginning of their type. All others run at the API.
const AGENTS_TOOLS: [&str; 9] = [
    "function",
    "custom",
    "namespace",
    "local_shell",
    "shell",
    "apply_patch",
    "bash_",
    "text_editor_",
    "memory_",
];

struct Walk<'f> {
    place: Place,
    found: &'f mut Found,
}

impl Walk<'_> {
    fn at(&mut self, place: Place) -> Walk<'_> {
        Walk { place, found: self.found }
    }

    fn image(&mut self, bytes: usize) {
        self.found.images = self.found.images.saturating_add(1);
        self.found.image_bytes = self.found.image_bytes.saturating_add(bytes as u64);
    }

    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        let next = match (self.place, key) {
            (Place::Body, "messages" | "input") => Some(Place::Items),
            (Place::Body, "tools") => Some(Place::Tools),
            (Place::Item | Place::Source, "content") | (Place::Item, "output") => Some(Place::Items),
            (Place::Item, "source") => Some(Place::Source),
            (Place::Item, "image_url") | (Place::ImageUrl, "url") => Some(Place::ImageUrl),
            _ => None,
        };
        if let Some(place) = next {
            return map.next_value_seed(self.at(place));
        }
        let elsewhere = match self.place {
            Place::Body => ELSEWHERE_FIELDS.contains(&key),
            Place::Item => FILE_FIELDS.contains(&key),
            _ => false,
        };
        // `null` is nothing.
        self.found.elsewhere |= map.next_value::<Option<IgnoredAny>>()?.is_some() && elsewhere;
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        match self.place {
            Place::Source => return self.source(map),
            Place::Tool => return self.tool(map),
            // A list that is an object is nothing that an API takes.
            Place::Items | Place::Tools => return Err(A::Error::custom("an object in the place of a list")),
            Place::Body | Place::Item | Place::ImageUrl => {}
        }
        while let Some(key) = map.next_key::<String>()? {
            self.field(&key, &mut map)?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let inside = match self.place {
            Place::Items => Place::Item,
            Place::Tools => Place::Tool,
            _ => return Err(A::Error::custom("a list in the place of an object")),
        };
        while seq.next_element_seed(self.at(inside))?.is_some() {}
        Ok(())
    }

    fn visit_str<E>(mut self, text: &str) -> Result<(), E> {
        if self.place == Place::ImageUrl {
            // What is fetched is an image too.
            self.image(if text.starts_with("data:image/") { text.len() } else { 0 });
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

impl Walk<'_> {
    /// An image in the request, or a text; all else has a cost that its bytes do not tell.
    fn source<'de, A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let (mut kind, mut media, mut data) = (None, None, 0);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "type" => kind = Some(map.next_value_seed(Text)?),
                "media_type" => media = Some(map.next_value_seed(Text)?),
                "data" => data = map.next_value_seed(Length)?,
                _ => self.field(&key, &mut map)?,
            }
        }
        match kind.flatten().as_deref() {
            Some("base64") if media.flatten().is_some_and(|media| media.starts_with("image/")) => {
                self.image(data)
            }
            Some("text" | "content") => {}
            _ => self.found.elsewhere = true,
        }
        Ok(())
    }

    fn tool<'de, A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key != "type" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let kind = map.next_value_seed(Text)?;
            let agents = kind.is_none_or(|kind| AGENTS_TOOLS.iter().any(|known| kind.starts_with(known)));
            self.found.elsewhere |= !agents;
        }
        Ok(())
    }
}

/// Reads a text; of anything else nothing.
struct Text;

/// Reads how long a text is.
struct Length;

macro_rules! of_texts {
    ($seed:ident, $value:ty, $text:ident => $of_text:expr) => {
        impl<'de> DeserializeSeed<'de> for $seed {
            type Value = $value;

            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<$value, D::Error> {
                deserializer.deserialize_any(self)
            }
        }

        impl<'de> Visitor<'de> for $seed {
            type Value = $value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E>(self, $text: &str) -> Result<$value, E> {
                Ok($of_text)
            }

            fn visit_unit<E>(self) -> Result<$value, E> {
                Ok(Default::default())
            }
        }
    };
}

of_texts!(Text, Option<String>, text => Some(text.to_owned()));
of_texts!(Length, usize, text => text.len());

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn estimate(body: &str, limit: Limit) -> Estimate {
        Estimate::new(body.as_bytes(), &Ask::parse(body.as_bytes()).unwrap(), limit).unwrap()
    }

    fn found(body: &str) -> (u64, u64, bool) {
        let Found { images, image_bytes, elsewhere } = Found::in_body(body.as_bytes());
        (images, image_bytes, elsewhere)
    }

    #[test]
    fn the_bound_of_an_answer_is_where_its_api_has_it() {
        for (body, limit, expected) in [
            (r#"{"model":"m","max_tokens":7}"#, Limit::Messages, (7, 7)),
            (r#"{"model":"m","max_output_tokens":7,"max_tokens":9}"#, Limit::Responses, (7, 7)),
            (r#"{"model":"m","max_tokens":9}"#, Limit::Responses, (1, 50)),
            (r#"{"model":"m","max_completion_tokens":7}"#, Limit::Chat, (7, 7)),
            (r#"{"model":"m","max_completion_tokens":7,"max_tokens":9}"#, Limit::Chat, (9, 9)),
            (r#"{"model":"m","max_tokens":9,"n":4}"#, Limit::Chat, (36, 36)),
            (r#"{"model":"m","n":4}"#, Limit::Chat, (4, 200)),
            (r#"{"model":"m","max_tokens":9,"n":4}"#, Limit::Messages, (9, 9)),
            (r#"{"model":"m","max_tokens":null}"#, Limit::Messages, (1, 50)),
            (r#"{"model":"m","max_tokens":18446744073709551615,"n":9}"#, Limit::Chat, (u64::MAX, u64::MAX)),
        ] {
            let estimate = estimate(body, limit);
            let input = (body.len() as u64).div_ceil(2);
            assert_eq!(estimate.input, input, "{body}");
            let (least, most) = (input.saturating_add(expected.0), input.saturating_add(expected.1));
            assert_eq!(estimate.wanted(50), (least, most), "{body}");
        }
    }

    #[test]
    fn bounds_that_are_no_numbers_are_refused() {
        for body in [
            r#"{"model":"m","max_tokens":-1}"#,
            r#"{"model":"m","max_tokens":"9"}"#,
            r#"{"model":"m","max_tokens":1.5}"#,
            r#"{"model":"m","max_tokens":1e3}"#,
            r#"{"model":"m","max_tokens":18446744073709551616}"#,
            r#"{"model":"m","max_tokens":1,"n":[]}"#,
        ] {
            let ask = Ask::parse(body.as_bytes()).unwrap();
            let refusal = Estimate::new(body.as_bytes(), &ask, Limit::Chat).unwrap_err();
            assert_eq!(refusal.status, StatusCode::BAD_REQUEST, "{body}");
        }
        assert!(Ask::parse(br#"{"model":"m","max_tokens":1,"max_tokens":2}"#).is_err());
        assert!(Ask::parse(br#"{"model":"m","Max_Tokens":1}"#).is_err());
    }

    #[test]
    fn a_body_without_a_bound_gets_one() {
        for (body, limit, expected) in [
            (r#" {"model":"m"}"#, Limit::Responses, r#" {"max_output_tokens":25,"model":"m"}"#),
            (r#"{"model":"m","n":5}"#, Limit::Chat, r#"{"max_completion_tokens":5,"model":"m","n":5}"#),
            (r#"{"max_tokens" : null ,"model":"m"}"#, Limit::Messages, r#"{"max_tokens" : 25 ,"model":"m"}"#),
            (r#"{"model":"m","max_tokens":7}"#, Limit::Messages, r#"{"model":"m","max_tokens":7}"#),
        ] {
            let ask = Ask::parse(body.as_bytes()).unwrap();
            let estimate = Estimate::new(body.as_bytes(), &ask, limit).unwrap();
            let output = estimate.output(estimate.input + 25, 1000);
            let bounded = estimate.bounded_body(Bytes::from(body.to_owned()), &ask, output);
            assert_eq!(bounded, expected);
            let again = Ask::parse(&bounded).unwrap();
            assert_eq!(
                Estimate::new(&bounded, &again, limit).unwrap().wanted(9).0
                    - (bounded.len() as u64).div_ceil(2),
                output
            );
        }
    }

    #[test]
    fn images_count_by_number_and_only_where_they_are_images() {
        let data = "A".repeat(3000);
        let anthropic = format!(
            r#"{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}"#
        );
        let openai = format!(r#"{{"type":"input_image","image_url":"data:image/png;base64,{data}"}}"#);
        let chat = format!(r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}"#);
        for (body, expected) in [
            (
                format!(r#"{{"messages":[{{"role":"user","content":[{anthropic},{anthropic}]}}]}}"#),
                (2, 6000, false),
            ),
            (
                format!(
                    r#"{{"messages":[{{"content":[{{"type":"tool_result","content":[{anthropic}]}}]}}]}}"#
                ),
                (1, 3000, false),
            ),
            (format!(r#"{{"input":[{{"role":"user","content":[{openai}]}}]}}"#), (1, 3022, false)),
            (
                format!(r#"{{"input":[{{"type":"function_call_output","output":[{openai}]}}]}}"#),
                (1, 3022, false),
            ),
            (format!(r#"{{"messages":[{{"content":[{chat}]}}]}}"#), (1, 3022, false)),
            (r#"{"input":[{"content":[{"image_url":"https://x/a.png"}]}]}"#.to_owned(), (1, 0, false)),
            // An argument of a tool is text, and so is what has another name.
            (
                format!(r#"{{"messages":[{{"content":[{{"type":"tool_use","input":{anthropic}}}]}}]}}"#),
                (0, 0, false),
            ),
            (
                format!(r#"{{"messages":[{{"content":[{{"input":{{"content":[{anthropic}]}}}}]}}]}}"#),
                (0, 0, false),
            ),
            (format!(r#"{{"tools":[{{"input_schema":{anthropic}}}],"metadata":{openai}}}"#), (0, 0, false)),
            (format!(r#"{{"messages":[{{"content":"{data}"}}]}}"#), (0, 0, false)),
        ] {
            assert_eq!(found(&body), expected, "{body}");
        }
    }

    #[test]
    fn input_that_is_not_in_the_body_reserves_more() {
        let deep = format!(r#"{{"messages":{}"a"{}}}"#, r#"[{"content":"#.repeat(200), "}]".repeat(200));
        for body in [
            r#"{"model":"m","previous_response_id":"resp_1"}"#,
            r#"{"model":"m","conversation":{"id":"c"}}"#,
            r#"{"model":"m","prompt":{"id":"p"}}"#,
            r#"{"model":"m","mcp_servers":[]}"#,
            r#"{"model":"m","tools":[{"name":"a"},{"type":"web_search_20250305","name":"web_search"}]}"#,
            r#"{"model":"m","tools":[{"type":"file_search"}]}"#,
            r#"{"model":"m","messages":[{"content":[{"type":"document","source":{"type":"url","url":"https://x"}}]}]}"#,
            r#"{"model":"m","messages":[{"content":[{"source":{"type":"base64","media_type":"application/pdf","data":""}}]}]}"#,
            r#"{"model":"m","messages":[{"content":[{"source":{"media_type":"image/png","data":"x"}}]}]}"#,
            r#"{"model":"m","input":[{"content":[{"type":"input_file","file_id":"f"}]}]}"#,
            deep.as_str(),
        ] {
            assert!(found(body).2, "{body}");
        }
        for body in [
            r#"{"model":"m","previous_response_id":null,"container":null}"#,
            r#"{"model":"m","tools":[{"name":"a"},{"type":"function"},{"type":"custom"},{"type":"bash_20250124"},{}]}"#,
            r#"{"model":"m","messages":[{"content":[{"type":"document","source":{"type":"text","data":"abc"}}]}]}"#,
            r#"{"model":"m","input":"text","tools":null,"messages":null}"#,
        ] {
            assert!(!found(body).2, "{body}");
        }
        let searching =
            estimate(r#"{"model":"m","max_tokens":9,"tools":[{"type":"web_search"}]}"#, Limit::Messages);
        assert_eq!(searching.wanted(50), (searching.input + 9, ELSEWHERE));
    }

    proptest! {
        /// Whatever is asked for: what is reserved at most covers what may be used, and a bound is within it.
        #[test]
        fn a_bound_is_within_what_is_reserved(
            output in proptest::option::of(0..u64::MAX), answers in 1..1000u64, input in 0..u64::MAX,
            share in 0.0..=1.0f64, most_output in 0..100_000u64, elsewhere: bool,
        ) {
            let estimate = Estimate { limit: Limit::Chat, input, output, answers, elsewhere };
            let (least, most) = estimate.wanted(most_output);
            prop_assert!(least <= most);
            let reserved = least + ((most - least) as f64 * share) as u64;
            let reserved = reserved.clamp(least, most);
            let used = estimate.output(reserved, most_output).saturating_add(input);
            prop_assert!(used <= reserved, "{used} of {reserved}");
        }
    }
}
