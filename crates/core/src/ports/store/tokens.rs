//! What accounts were charged for models, by day.

use crate::Result;
use async_trait::async_trait;
use jiff::{Timestamp, civil::Date, tz::TimeZone};
use seawall_api::{AccountId, TurnId, conversation::Usage};

const SECONDS_OF_A_DAY: i64 = 86_400;

/// A day in UTC, as the number of days since 1970-01-01.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(pub i64);

impl Day {
    /// How many days before today are kept: the longest month, and one more for reports about the month before.
    pub const KEPT: i64 = 62;

    pub fn of(time: Timestamp) -> Day {
        let days = time.as_nanosecond().div_euclid(i128::from(SECONDS_OF_A_DAY) * 1_000_000_000);
        // Times that there are have days that fit.
        Day(i64::try_from(days).unwrap_or(0))
    }

    /// The first and the last day of this day's month.
    pub fn month(self) -> (Day, Day) {
        let date = self.date();
        (Day::of_date(date.first_of_month()), Day::of_date(date.last_of_month()))
    }

    /// The oldest day that is still kept on this day.
    pub fn oldest_kept(self) -> Day {
        Day(self.0.saturating_sub(Day::KEPT))
    }

    /// Days beyond what a calendar knows are its first day.
    fn date(self) -> Date {
        let noon = self.0.saturating_mul(SECONDS_OF_A_DAY).saturating_add(SECONDS_OF_A_DAY / 2);
        let time = Timestamp::from_second(noon).unwrap_or(Timestamp::UNIX_EPOCH);
        time.to_zoned(TimeZone::UTC).date()
    }

    fn of_date(date: Date) -> Day {
        let epoch = Date::constant(1970, 1, 1);
        Day(date.since(epoch).map_or(0, |span| i64::from(span.get_days())))
    }
}

/// What one run of a turn is charged on one day, so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCharge {
    pub day: Day,
    pub turn: TurnId,
    /// A number that only this run has: a turn that is taken up again after a crash is a new run, and what the run
    /// before it was charged stays.
    pub run: u64,
    pub tokens: u64,
}

/// What an account was charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenTotals {
    pub day: u64,
    pub month: u64,
}

/// Charges are sums of input, output and cached tokens. They outlive the conversation that they were made for, and
/// are kept for [`Day::KEPT`] days. [`Turns::end`](super::Turns::end) replaces the charges of a turn's runs by what
/// the turn used, where that is more, and [`Conversations::add_usage`](super::Conversations::add_usage) adds what a
/// hook used.
#[async_trait]
pub trait Tokens: Send + Sync {
    /// Sets each charge to its value, whatever it was before, and returns what the account is charged for `today` and
    /// its month with these. Without charges it only reads.
    async fn charge(&self, account: AccountId, charges: &[TokenCharge], today: Day) -> Result<TokenTotals>;
}

/// All tokens of a usage together, as limits count them.
pub fn all_tokens(usage: &Usage) -> u64 {
    usage.input_tokens.saturating_add(usage.output_tokens).saturating_add(usage.cache_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(text: &str) -> Day {
        Day::of(text.parse().unwrap())
    }

    #[test]
    fn a_day_begins_at_midnight_in_utc() {
        assert_eq!(day("1970-01-01T00:00:00Z"), Day(0));
        assert_eq!(day("1969-12-31T23:59:59.999Z"), Day(-1));
        assert_eq!(day("2026-11-15T23:59:59Z").0 + 1, day("2026-11-16T00:00:00Z").0);
    }

    #[test]
    fn a_month_has_its_own_length() {
        for (inside, first, last) in [
            ("2026-11-15T21:17:00Z", "2026-11-01T00:00:00Z", "2026-11-30T00:00:00Z"),
            ("2028-02-29T23:59:59Z", "2028-02-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("2026-12-31T00:00:00Z", "2026-12-01T00:00:00Z", "2026-12-31T00:00:00Z"),
            ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1970-01-31T00:00:00Z"),
        ] {
            assert_eq!(day(inside).month(), (day(first), day(last)), "{inside}");
        }
        // No day panics.
        for odd in [i64::MIN, -5_000_000, 5_000_000, i64::MAX] {
            let (first, last) = Day(odd).month();
            assert!(first <= last);
        }
    }
}
