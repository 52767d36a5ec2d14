//! Messages as items, and back.

use super::Attributes;
use aws_sdk_dynamodb::types::AttributeValue;
use seawall_api::{AccountId, ConversationId, MessageId, conversation::Message};
use seawall_core::{Error, Result, ports::store::Cursor};

/// Content of one item. An item may have 400 KB, with its keys and names.
const PART: usize = 350_000;

/// What a message in one item is taken for where its size is not known.
const USUAL: u64 = 32 << 10;

/// Where a message is.
#[derive(Debug)]
pub struct Place {
    account: AccountId,
    conversation: ConversationId,
    id: MessageId,
    sort_key: String,
}

/// The item of a message.
#[derive(Debug)]
pub struct Item {
    pub attributes: Attributes,
}

/// Where the content of an item is.
pub enum Content {
    Here(String),
    Parts { prefix: String, count: usize },
}

impl Place {
    pub fn of(account: AccountId, message: &Message) -> Place {
        let cursor = Cursor::at(message.created_at, message.id.as_uuid().as_u128());
        Place {
            account,
            conversation: message.conversation_id,
            id: message.id,
            sort_key: Place::sort_key(cursor),
        }
    }

    /// Texts that are ordered as times are, also those before 1970.
    pub fn sort_key(cursor: Cursor) -> String {
        let time = cursor.key.cast_unsigned() ^ (1 << 63);
        format!("{time:020}#{:032x}", cursor.id)
    }

    pub fn partition(account: AccountId, conversation: ConversationId) -> String {
        format!("{account}#{conversation}")
    }

    pub fn parts_partition(account: AccountId, conversation: ConversationId) -> String {
        format!("{account}#{conversation}#parts")
    }

    pub fn ids_partition(account: AccountId, conversation: ConversationId) -> String {
        format!("{account}#{conversation}#ids")
    }

    pub fn pointer_key(account: AccountId, conversation: ConversationId, id: MessageId) -> Attributes {
        key(Place::ids_partition(account, conversation), id.to_string())
    }

    pub fn pointer(&self) -> Attributes {
        let mut item = Place::pointer_key(self.account, self.conversation, self.id);
        let partition = Place::partition(self.account, self.conversation);
        item.insert("target_pk".into(), AttributeValue::S(partition));
        item.insert("target_sk".into(), AttributeValue::S(self.sort_key.clone()));
        item
    }

    fn parts_prefix(&self, revision: u32) -> String {
        format!("{}#{revision:010}#", self.sort_key)
    }
}

fn key(partition: String, sort_key: String) -> Attributes {
    [("pk".to_owned(), AttributeValue::S(partition)), ("sk".to_owned(), AttributeValue::S(sort_key))].into()
}

impl Item {
    /// The item of a message, and its parts where it is too large for one.
    pub fn of(place: &Place, message: &Message) -> Result<(Item, Vec<Attributes>)> {
        let content = serde_json::to_string(message)
            .map_err(|error| Error::internal("a message that is no JSON").with_source(error))?;
        let partition = Place::partition(place.account, place.conversation);
        let mut attributes = key(partition, place.sort_key.clone());
        attributes.insert("revision".into(), AttributeValue::N(message.revision.to_string()));
        if content.len() <= PART {
            attributes.insert("content".into(), AttributeValue::S(content));
            return Ok((Item { attributes }, Vec::new()));
        }
        let prefix = place.parts_prefix(message.revision);
        let cut = cut(&content);
        attributes.insert("parts".into(), AttributeValue::N(cut.len().to_string()));
        attributes.insert("prefix".into(), AttributeValue::S(prefix.clone()));
        let parts = cut.into_iter().enumerate().map(|(number, part)| {
            let partition = Place::parts_partition(place.account, place.conversation);
            let mut attributes = key(partition, format!("{prefix}{number:06}"));
            attributes.insert("content".into(), AttributeValue::S(part.to_owned()));
            attributes
        });
        Ok((Item { attributes }, parts.collect()))
    }
}

/// Into pieces that are small enough, never within a character.
fn cut(mut content: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    while content.len() > PART {
        let (part, rest) = content.split_at(content.floor_char_boundary(PART));
        parts.push(part);
        content = rest;
    }
    parts.push(content);
    parts
}

fn text<'a>(item: &'a Attributes, name: &str) -> Result<&'a String> {
    let found = item.get(name).and_then(|value| value.as_s().ok());
    found.ok_or_else(|| Error::internal(format!("an item of DynamoDB has no `{name}`")))
}

pub fn content(item: &Attributes) -> Result<Content> {
    let Some(count) = item.get("parts") else { return Ok(Content::Here(text(item, "content")?.clone())) };
    let count = count.as_n().ok().and_then(|count| count.parse().ok());
    let count = count.ok_or_else(|| Error::internal("an item of DynamoDB has no count of parts"))?;
    Ok(Content::Parts { prefix: text(item, "prefix")?.clone(), count })
}

/// Estimates the content of an item by its number of parts: DynamoDB does not tell sizes.
pub fn size(item: &Attributes) -> Result<u64> {
    let Some(count) = item.get("parts") else { return Ok(USUAL) };
    let count = count.as_n().ok().and_then(|count| count.parse::<u64>().ok());
    let count = count.ok_or_else(|| Error::internal("an item of DynamoDB has no count of parts"))?;
    Ok(count * PART as u64)
}

/// What a pointer points to.
pub fn target(item: &Attributes) -> Option<Attributes> {
    let of = |name: &str| item.get(name).and_then(|value| value.as_s().ok()).cloned();
    Some(key(of("target_pk")?, of("target_sk")?))
}

pub fn join(parts: &[Attributes]) -> Result<String> {
    parts.iter().map(|part| text(part, "content").map(String::as_str)).collect()
}

pub fn parse(content: &str) -> Result<Message> {
    serde_json::from_str(content)
        .map_err(|error| Error::internal("an item of DynamoDB is no message").with_source(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ordered_as_times_and_ids_are() {
        let cursor = |key, id| Place::sort_key(Cursor { key, id });
        let keys = [
            cursor(i64::MIN, 9),
            cursor(-1, 0),
            cursor(0, 0),
            cursor(0, 1),
            cursor(7, 0),
            cursor(i64::MAX, 0),
        ];
        assert!(keys.is_sorted());
    }

    #[test]
    fn content_is_cut_between_characters_and_joined_again() {
        let content: String = "aé☃".chars().cycle().take(700_000).collect();
        let parts = cut(&content);
        assert!(parts.len() > 3 && parts.iter().all(|part| part.len() <= PART));
        assert_eq!(parts.concat(), content);
        assert_eq!(cut("x"), ["x"]);
    }
}
