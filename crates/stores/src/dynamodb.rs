//! Messages in DynamoDB.
//!
//! One table with a partition key `pk` and a sort key `sk`, both texts. A conversation has three partitions:
//!
//! ```text
//! <account>#<conversation>          <created_at>#<id>               a message: its revision, its content or how many parts
//! <account>#<conversation>#parts    <created_at>#<id>#<revision>#n  content that is larger than an item may be
//! <account>#<conversation>#ids      <id>                            where the message of that id is
//! ```
//!
//! Keys are fixed by the message, so storing twice is storing once; a condition keeps older revisions from replacing
//! newer ones. Parts are written before the message that names them, so a reader sees the old message or the new one.

mod errors;
mod item;
mod table;

use async_trait::async_trait;
use aws_sdk_dynamodb::{
    Client,
    config::{BehaviorVersion, retry::RetryConfig},
    types::{AttributeValue, DeleteRequest, PutRequest, ReturnValue, WriteRequest},
};
use errors::failed;
use futures::{StreamExt, TryStreamExt, stream};
use item::{Item, Place};
use seawall_api::{AccountId, ConversationId, ErrorKind, MessageId, conversation::Message};
use seawall_core::{
    Error, Result,
    ports::store::{Cursor, Direction, Messages, Page, Paged},
};
use std::{collections::HashMap, time::Duration};

/// Requests of one call at the same time.
const AT_ONCE: usize = 16;
/// Writes of one request, as DynamoDB has it.
const BATCH: usize = 25;
/// How often a request that was throttled, or did not arrive, is tried by the SDK, with growing pauses. Then it is up to the
/// caller, who has the outbox.
const TRIES: u32 = 5;
/// How often what of a batch was left undone is tried again.
const ATTEMPTS: u32 = 10;
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Where the table is.
#[derive(Debug, Clone)]
pub struct DynamoSettings {
    pub table: String,
    /// Another server than Amazon's.
    pub endpoint: Option<String>,
    /// None: as the environment says.
    pub region: Option<String>,
    /// Makes the table where it is missing. For development: it decides how the table is billed.
    pub make_table: bool,
}

#[derive(Debug, Clone)]
pub struct DynamoMessages {
    client: Client,
    table: String,
}

type Attributes = HashMap<String, AttributeValue>;

impl DynamoMessages {
    /// With credentials from the usual places. The table has to be there, or may be made.
    pub async fn open(settings: &DynamoSettings) -> Result<DynamoMessages> {
        let mut loader = aws_config::defaults(BehaviorVersion::latest());
        if let Some(region) = &settings.region {
            loader = loader.region(aws_sdk_dynamodb::config::Region::new(region.clone()));
        }
        if let Some(endpoint) = &settings.endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        let loaded = loader.retry_config(RetryConfig::standard().with_max_attempts(TRIES)).load().await;
        let messages = DynamoMessages { client: Client::new(&loaded), table: settings.table.clone() };
        table::ensure(&messages.client, settings).await?;
        Ok(messages)
    }

    async fn put_one(&self, account: AccountId, message: &Message) -> Result<()> {
        let place = Place::of(account, message);
        let (item, parts) = Item::of(&place, message)?;
        if !parts.is_empty() {
            let puts = parts.into_iter().map(|part| PutRequest::builder().set_item(Some(part)).build());
            let puts = puts.map(|put| put.map(|put| WriteRequest::builder().put_request(put).build()));
            self.write_all(puts.collect::<Result<_, _>>().map_err(failed)?).await?;
        }
        let pointer = self.client.put_item().table_name(&self.table).set_item(Some(place.pointer()));
        pointer.send().await.map_err(failed)?;
        let put = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(item.attributes))
            .condition_expression("attribute_not_exists(pk) OR revision < :revision")
            .expression_attribute_values(":revision", AttributeValue::N(message.revision.to_string()))
            .return_values(ReturnValue::AllOld)
            .send()
            .await;
        match put {
            Ok(done) => self.delete_parts(account, message.conversation_id, done.attributes).await,
            Err(error)
                if error.as_service_error().is_some_and(|e| e.is_conditional_check_failed_exception()) =>
            {
                // The same or a newer one is there.
                Ok(())
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The parts of a message that was just replaced. Who reads it meanwhile looks again.
    async fn delete_parts(
        &self,
        account: AccountId,
        conversation: ConversationId,
        old: Option<Attributes>,
    ) -> Result<()> {
        let Some(old) = old else { return Ok(()) };
        let item::Content::Parts { prefix, count } = item::content(&old)? else { return Ok(()) };
        let partition = Place::parts_partition(account, conversation);
        let parts = self.query(&partition, Some(("begins_with(sk, :sk)", prefix)), true, count, None).await?;
        self.delete_items(parts).await
    }

    /// Everything of a partition after a key, as many as wanted: whole items, or these attributes.
    async fn query(
        &self,
        partition: &str,
        range: Option<(&'static str, String)>,
        forward: bool,
        limit: usize,
        attributes: Option<&str>,
    ) -> Result<Vec<Attributes>> {
        let (mut found, mut start) = (Vec::new(), None);
        loop {
            let condition = match &range {
                Some((condition, _)) => format!("pk = :pk AND {condition}"),
                None => "pk = :pk".to_owned(),
            };
            let mut query = self
                .client
                .query()
                .table_name(&self.table)
                .key_condition_expression(condition)
                .expression_attribute_values(":pk", AttributeValue::S(partition.to_owned()))
                .scan_index_forward(forward)
                .consistent_read(true)
                .limit(i32::try_from(limit - found.len()).unwrap_or(i32::MAX))
                .set_projection_expression(attributes.map(str::to_owned))
                .set_exclusive_start_key(start);
            if let Some((_, key)) = &range {
                query = query.expression_attribute_values(":sk", AttributeValue::S(key.clone()));
            }
            let page = query.send().await.map_err(failed)?;
            found.extend(page.items.unwrap_or_default());
            start = page.last_evaluated_key;
            if start.is_none() || found.len() >= limit {
                return Ok(found);
            }
        }
    }

    /// The message of an item, with its parts.
    async fn whole(
        &self,
        account: AccountId,
        conversation: ConversationId,
        mut item: Attributes,
    ) -> Result<Message> {
        let partition = Place::parts_partition(account, conversation);
        for _ in 0..ATTEMPTS {
            let (prefix, count) = match item::content(&item)? {
                item::Content::Here(content) => return item::parse(&content),
                item::Content::Parts { prefix, count } => (prefix, count),
            };
            let range = Some(("begins_with(sk, :sk)", prefix));
            let parts = self.query(&partition, range, true, count, None).await?;
            if parts.len() == count {
                return item::parse(&item::join(&parts)?);
            }
            // It was replaced in between.
            item.retain(|name, _| name == "pk" || name == "sk");
            let gone = || Error::not_found("the message was just deleted");
            item = self.read(item).await?.ok_or_else(gone)?;
        }
        // It is just being deleted, and its parts went first.
        Err(Error::not_found("the message has no content any more"))
    }

    async fn read(&self, key: Attributes) -> Result<Option<Attributes>> {
        let read = self.client.get_item().table_name(&self.table).set_key(Some(key)).consistent_read(true);
        Ok(read.send().await.map_err(failed)?.item)
    }

    /// In batches; what DynamoDB leaves undone is tried again.
    async fn write_all(&self, requests: Vec<WriteRequest>) -> Result<()> {
        for batch in requests.chunks(BATCH) {
            let (mut left, mut pause) = (batch.to_vec(), FIRST_PAUSE);
            for attempt in 0.. {
                let asked = self.client.batch_write_item().request_items(&self.table, left);
                let done = asked.send().await.map_err(failed)?;
                left = done.unprocessed_items.and_then(|mut all| all.remove(&self.table)).unwrap_or_default();
                if left.is_empty() {
                    break;
                }
                if attempt == ATTEMPTS {
                    return Err(Error::unavailable("DynamoDB is throttled: raise the table's capacity"));
                }
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        }
        Ok(())
    }

    async fn delete_partition(&self, partition: &str) -> Result<()> {
        loop {
            let found = self.keys(partition).await?;
            if found.is_empty() {
                return Ok(());
            }
            self.delete_items(found).await?;
        }
    }

    /// Some of the keys of a partition. Parts are large.
    async fn keys(&self, partition: &str) -> Result<Vec<Attributes>> {
        let query = self
            .client
            .query()
            .table_name(&self.table)
            .key_condition_expression("pk = :pk")
            .expression_attribute_values(":pk", AttributeValue::S(partition.to_owned()))
            .projection_expression("pk, sk")
            .consistent_read(true);
        Ok(query.send().await.map_err(failed)?.items.unwrap_or_default())
    }

    async fn delete_items(&self, items: Vec<Attributes>) -> Result<()> {
        let mut deletes = Vec::with_capacity(items.len());
        for mut item in items {
            item.retain(|name, _| name == "pk" || name == "sk");
            let delete = DeleteRequest::builder().set_key(Some(item)).build().map_err(failed)?;
            deletes.push(WriteRequest::builder().delete_request(delete).build());
        }
        self.write_all(deletes).await
    }
}

#[async_trait]
impl Messages for DynamoMessages {
    async fn put(&self, account: AccountId, messages: &[Message]) -> Result<()> {
        let puts: Vec<_> = messages.iter().map(|message| self.put_one(account, message)).collect();
        stream::iter(puts).buffer_unordered(AT_ONCE).try_collect().await
    }

    async fn get(&self, account: AccountId, conversation: ConversationId, id: MessageId) -> Result<Message> {
        let none = || Error::not_found(format!("there is no message {id}"));
        let pointer = self.read(Place::pointer_key(account, conversation, id)).await?;
        let key = pointer.as_ref().and_then(item::target).ok_or_else(none)?;
        let found = self.read(key).await?;
        self.whole(account, conversation, found.ok_or_else(none)?).await
    }

    async fn size(&self, account: AccountId, conversation: ConversationId, id: MessageId) -> Result<u64> {
        let none = || Error::not_found(format!("there is no message {id}"));
        let pointer = self.read(Place::pointer_key(account, conversation, id)).await?;
        let key = pointer.as_ref().and_then(item::target).ok_or_else(none)?;
        let read = self.client.get_item().table_name(&self.table).set_key(Some(key)).consistent_read(true);
        let found = read.projection_expression("pk, parts").send().await.map_err(failed)?.item;
        item::size(&found.ok_or_else(none)?)
    }

    async fn sizes(
        &self,
        account: AccountId,
        conversation: ConversationId,
        direction: Direction,
        page: &Page,
    ) -> Result<Vec<u64>> {
        page.check()?;
        let forward = direction == Direction::OldestFirst;
        let condition = if forward { "sk > :sk" } else { "sk < :sk" };
        let range = page.after.map(|cursor| (condition, Place::sort_key(cursor)));
        let partition = Place::partition(account, conversation);
        let found = self.query(&partition, range, forward, page.limit as usize, Some("pk, parts")).await?;
        found.iter().map(item::size).collect()
    }

    async fn list(
        &self,
        account: AccountId,
        conversation: ConversationId,
        direction: Direction,
        page: &Page,
    ) -> Result<Paged<Message>> {
        page.check()?;
        let forward = direction == Direction::OldestFirst;
        let condition = if forward { "sk > :sk" } else { "sk < :sk" };
        let range = page.after.map(|cursor| (condition, Place::sort_key(cursor)));
        let partition = Place::partition(account, conversation);
        let found = self.query(&partition, range, forward, page.limit as usize + 1, None).await?;
        let whole = stream::iter(found.into_iter().map(|item| self.whole(account, conversation, item)));
        let whole = whole.buffered(AT_ONCE).filter_map(async |message| match message {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            other => Some(other),
        });
        let messages = whole.try_collect::<Vec<_>>().await?;
        Ok(Paged::cut(messages, page.limit, |message| {
            Cursor::at(message.created_at, message.id.as_uuid().as_u128())
        }))
    }

    async fn delete_all(&self, account: AccountId, conversation: ConversationId) -> Result<()> {
        // Messages first: without them nobody looks for the rest.
        self.delete_partition(&Place::partition(account, conversation)).await?;
        self.delete_partition(&Place::parts_partition(account, conversation)).await?;
        self.delete_partition(&Place::ids_partition(account, conversation)).await
    }
}
