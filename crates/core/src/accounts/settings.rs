//! The settings of an account, as an operator writes them (K9).

use super::limit::{AccountLimits, Limit};
use crate::{Error, Result};
use serde_json::{Map, Value};

/// The value of a limit that shall not hold.
const UNLIMITED: &str = "unlimited";
const MODELS: &str = "models";
const MODELS_DENIED: &str = "models_denied";
/// Longer than any model's name.
const LONGEST_PATTERN: usize = 200;
const MOST_PATTERNS: usize = 1000;

/// The settings of an account, with the server's defaults where the account has none of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct AccountSettings {
    /// Patterns of the models that the account may use. `None` allows all of them.
    pub models: Option<Vec<String>>,
    /// Patterns of models that are refused in any case.
    pub models_denied: Vec<String>,
    pub limits: AccountLimits,
}

impl AccountSettings {
    /// The settings of an account that has written none.
    pub fn with_limits(limits: AccountLimits) -> AccountSettings {
        AccountSettings { models: None, models_denied: Vec::new(), limits }
    }

    /// Refuses a map with an unknown name, a wrong type or a value out of range, and names every one of them.
    pub fn check(settings: &Map<String, Value>) -> Result<()> {
        let mut read = AccountSettings::with_limits(AccountLimits::NONE);
        let wrong: Vec<String> =
            settings.iter().filter_map(|(name, value)| read.take(name, value).err()).collect();
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(Error::invalid(wrong.join("; ")).with_code("invalid_settings")),
        }
    }

    /// Reads stored settings over `defaults`. What is wrong counts as zero, and is told beside the settings: rows that
    /// were written before [`AccountSettings::check`] existed must not mean "unlimited".
    pub fn load(defaults: AccountLimits, settings: &Map<String, Value>) -> (AccountSettings, Vec<String>) {
        let mut read = AccountSettings::with_limits(defaults);
        let mut wrong = Vec::new();
        for (name, value) in settings {
            if let Err(problem) = read.take(name, value) {
                read.close(name);
                wrong.push(problem);
            }
        }
        (read, wrong)
    }

    /// Takes one setting over; the error says what is wrong with it.
    fn take(&mut self, name: &str, value: &Value) -> Result<(), String> {
        match (name, Limit::from_name(name)) {
            (MODELS, _) => self.models = Some(patterns(name, value)?),
            (MODELS_DENIED, _) => self.models_denied = patterns(name, value)?,
            (_, Some(limit)) => self.limits.set(limit, bound(limit, value)?),
            (_, None) => return Err(unknown(name)),
        }
        Ok(())
    }

    /// Allows nothing of what a setting is about, where its value cannot be read.
    fn close(&mut self, name: &str) {
        match meant(name) {
            Some(MODELS) => self.models = Some(Vec::new()),
            Some(MODELS_DENIED) => self.models_denied = vec!["*".to_owned()],
            Some(name) => {
                if let Some(limit) = Limit::from_name(name) {
                    self.limits.set(limit, Some(0));
                }
            }
            None => {}
        }
    }
}

fn bound(limit: Limit, value: &Value) -> Result<Option<u64>, String> {
    if value.as_str() == Some(UNLIMITED) {
        return Ok(None);
    }
    value.as_f64().and_then(|number| limit.parse(number)).map(Some).ok_or_else(|| {
        format!("`{limit}` is {value}: it must be a whole number from 0 on (of processors also a fraction), or \"{UNLIMITED}\" for no bound")
    })
}

fn patterns(name: &str, value: &Value) -> Result<Vec<String>, String> {
    let wrong = || {
        format!(
            "`{name}` is {value}: it must be a list of names of models, such as [\"claude-*\"], at most {MOST_PATTERNS} \
             of at most {LONGEST_PATTERN} bytes"
        )
    };
    let list = value.as_array().filter(|list| list.len() <= MOST_PATTERNS).ok_or_else(wrong)?;
    let good = |text: &&str| (1..=LONGEST_PATTERN).contains(&text.len());
    let texts = list.iter().map(|item| item.as_str().filter(good).map(str::to_owned));
    texts.collect::<Option<Vec<_>>>().ok_or_else(wrong)
}

fn unknown(name: &str) -> String {
    let hint = match meant(name) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("the settings are {}", names().collect::<Vec<_>>().join(", ")),
    };
    format!("there is no setting `{}`; {hint}", name.chars().take(100).collect::<String>())
}

fn names() -> impl Iterator<Item = &'static str> {
    [MODELS, MODELS_DENIED].into_iter().chain(Limit::ALL.map(Limit::name))
}

/// The setting that a name stands for, or that it misspells by at most two letters.
fn meant(name: &str) -> Option<&'static str> {
    let plain = name.to_ascii_lowercase().replace('-', "_");
    let nearest = names().map(|known| (distance(&plain, known), known)).min()?;
    (nearest.0 <= 2).then_some(nearest.1)
}

/// The number of letters that must be put in, taken out or replaced to make one text of the other.
fn distance(a: &str, b: &str) -> usize {
    if a.len().abs_diff(b.len()) > 2 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn k9_names_types_and_ranges_are_checked() {
        for good in [
            json!({}),
            json!({"models": ["a*"], "models_denied": ["b"], "tokens_per_day": 5}),
            json!({"cpus": 1.5, "sandboxes": 0, "memory_mb": "unlimited", "tokens_per_month": 4_000_000_000_u64}),
        ] {
            AccountSettings::check(&map(good.clone())).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for (wrong, told) in [
            (json!({"tokens_per_day": "abc"}), "`tokens_per_day`"),
            (json!({"tokens_per_day": -1}), "`tokens_per_day`"),
            (json!({"tokens_per_day": 1.5}), "`tokens_per_day`"),
            (json!({"tokens_per_day": null}), "`tokens_per_day`"),
            (json!({"tokens_per_day": 1e300}), "`tokens_per_day`"),
            (json!({"models": "claude"}), "a list"),
            (json!({"models": [1]}), "a list"),
            (json!({"models_denied": {"a": 1}}), "a list"),
            (json!({"token_per_day": 5}), "did you mean `tokens_per_day`?"),
            (json!({"Tokens-Per-Day": 5}), "did you mean `tokens_per_day`?"),
            (json!({"plan": "pro"}), "the settings are models, models_denied, sandboxes"),
        ] {
            let error = AccountSettings::check(&map(wrong.clone())).unwrap_err();
            assert_eq!(error.code(), "invalid_settings");
            assert!(error.to_string().contains(told), "{wrong}: {error}");
        }
    }

    #[test]
    fn k9_rows_that_are_wrong_count_as_zero_and_are_told() {
        let row = map(json!({
            "tokens_per_day": "abc", "models": "claude", "models_denied": 7, "runing_sandboxes": 5, "plan": "pro", "cpus": 1
        }));
        let (read, wrong) = AccountSettings::load(AccountLimits::NONE, &row);
        assert_eq!(wrong.len(), 5);
        assert_eq!(read.models, Some(vec![]));
        assert_eq!(read.models_denied, ["*"]);
        assert_eq!(read.limits.get(Limit::TokensPerDay), Some(0));
        assert_eq!(read.limits.get(Limit::RunningSandboxes), Some(0));
        assert_eq!(read.limits.get(Limit::Cpus), Some(1000));
        assert_eq!(read.limits.get(Limit::Sandboxes), None, "what nobody wrote about keeps its default");
    }

    #[test]
    fn an_account_can_be_given_more_than_the_default() {
        let mut defaults = AccountLimits::NONE;
        defaults.set(Limit::Sandboxes, Some(5));
        let load = |value: Value| AccountSettings::load(defaults, &map(value)).0.limits.get(Limit::Sandboxes);
        assert_eq!(load(json!({})), Some(5));
        assert_eq!(load(json!({"sandboxes": 7})), Some(7));
        assert_eq!(load(json!({"sandboxes": "unlimited"})), None);
    }

    proptest! {
        /// Whatever a row says, it never allows more than a row that passes the check would.
        #[test]
        fn k9_what_fails_the_check_never_means_unlimited(name in 0..Limit::ALL.len(), text in "\\PC{0,8}") {
            prop_assume!(text != UNLIMITED);
            let limit = Limit::ALL[name];
            let row = Map::from_iter([(limit.name().to_owned(), json!(text))]);
            prop_assert!(AccountSettings::check(&row).is_err());
            let (read, wrong) = AccountSettings::load(AccountLimits::NONE, &row);
            prop_assert_eq!(read.limits.get(limit), Some(0));
            prop_assert_eq!(wrong.len(), 1);
        }
    }
}
