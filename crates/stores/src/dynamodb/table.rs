//! The table: looked for, made in development, otherwise asked for with the exact command.

use super::{DynamoSettings, errors::failed};
use aws_sdk_dynamodb::{
    Client,
    types::{AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableStatus},
};
use seawall_api::ErrorKind;
use seawall_core::{Error, Result};
use std::time::Duration;

const LOOKS: usize = 240;
const PAUSE: Duration = Duration::from_millis(250);

/// Returns when the table can be used.
pub async fn ensure(client: &Client, settings: &DynamoSettings) -> Result<()> {
    for look in 0..LOOKS {
        match status(client, &settings.table).await? {
            Some(TableStatus::Active | TableStatus::Updating) => return Ok(()),
            Some(_) => {}
            None if !settings.make_table => return Err(missing(settings)),
            None if look == 0 => make(client, &settings.table).await?,
            None => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(Error::unavailable(format!("the table `{}` does not become active", settings.table)))
}

async fn status(client: &Client, table: &str) -> Result<Option<TableStatus>> {
    match client.describe_table().table_name(table).send().await.map_err(failed) {
        Ok(found) => Ok(found.table.and_then(|table| table.table_status)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

async fn make(client: &Client, table: &str) -> Result<()> {
    let mut request = client.create_table().table_name(table).billing_mode(BillingMode::PayPerRequest);
    for (name, kind) in [("pk", KeyType::Hash), ("sk", KeyType::Range)] {
        let attribute =
            AttributeDefinition::builder().attribute_name(name).attribute_type(ScalarAttributeType::S);
        let key = KeySchemaElement::builder().attribute_name(name).key_type(kind);
        request = request
            .attribute_definitions(attribute.build().map_err(failed)?)
            .key_schema(key.build().map_err(failed)?);
    }
    match request.send().await {
        // Another replica was faster.
        Err(error) if error.as_service_error().is_some_and(|e| e.is_resource_in_use_exception()) => Ok(()),
        other => other.map(drop).map_err(failed),
    }
}

fn missing(settings: &DynamoSettings) -> Error {
    let region = settings.region.as_ref().map_or(String::new(), |region| format!(" --region {region}"));
    let endpoint = settings.endpoint.as_ref().map_or(String::new(), |url| format!(" --endpoint-url {url}"));
    Error::invalid(format!(
        "there is no table `{table}` in DynamoDB. Make it with:\n  aws dynamodb create-table --table-name {table} \
         --attribute-definitions AttributeName=pk,AttributeType=S AttributeName=sk,AttributeType=S \
         --key-schema AttributeName=pk,KeyType=HASH AttributeName=sk,KeyType=RANGE \
         --billing-mode PAY_PER_REQUEST{region}{endpoint}",
        table = settings.table,
    ))
}
