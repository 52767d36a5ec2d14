//! The traits that core needs somebody else to fulfil.

pub mod clock;
pub mod gateway;
pub mod provider;
pub mod records;
pub mod store;

pub use clock::{Clock, SystemClock};
pub use provider::{
    AccountTotals, AccountUse, BoxEvent, BoxEvents, BoxInfo, BoxState, BoxUsage, Capabilities, LimitKinds,
    Provider, ToBox, Volumes,
};
pub use records::{Claim, Claims, Durable, Record, RecordHead, Records};
pub use seawall_api::http::VolumeInfo;
