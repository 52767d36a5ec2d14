//! Durations as people write them: `500ms`, `5s`, `2m`, `1h`, `30d`, or plain seconds.

use seawall_core::sandboxes::MAX_GRACE;
use std::time::Duration;

/// For clap: the error is what the user reads.
pub fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let wrong = || format!("`{text}` is not a duration: write it as 500ms, 5s, 2m, 1h or 30d");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let millis = match unit.trim() {
        "ms" => Some(number),
        "" | "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        "d" => number.checked_mul(86_400_000),
        _ => return Err(wrong()),
    };
    millis.map(Duration::from_millis).ok_or_else(|| format!("`{text}` is too long"))
}

/// As [`parse`], and zero makes no sense.
pub fn parse_positive(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("must be longer than zero; leave it out for no limit".to_owned()),
        duration => Ok(duration),
    }
}

/// As [`parse`], for how long a stop may wait.
pub fn parse_grace(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        grace if grace > MAX_GRACE => Err(format!("must be at most {}s", MAX_GRACE.as_secs())),
        grace => Ok(grace),
    }
}

/// Whole milliseconds, as the guest counts them.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How old something is, in the largest unit that fits.
pub fn age(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}m", s / 60),
        s @ 3600..86_400 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit() {
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse("5"), Ok(Duration::from_secs(5)));
        assert_eq!(parse(" 2m "), Ok(Duration::from_secs(120)));
        assert_eq!(parse("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn nonsense_says_how_to_write_it() {
        for text in ["", "s", "-1s", "5 parsecs", "1.5s", "5é"] {
            assert!(parse(text).unwrap_err().contains("500ms"), "{text}");
        }
        assert!(parse("99999999999999999h").unwrap_err().contains("too long"));
        assert!(parse_positive("0s").is_err());
    }

    #[test]
    fn ages_are_short() {
        assert_eq!([age(-5), age(59), age(61), age(7200), age(200_000)], ["0s", "59s", "1m", "2h", "2d"]);
    }
}
