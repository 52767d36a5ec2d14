//! Which known word was meant, by edit distance.

/// The closest known word, unless nothing is close.
pub fn closest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let (distance, best) = known.iter().map(|&candidate| (distance(word, candidate), candidate)).min()?;
    (distance <= (best.chars().count() / 2).max(2)).then_some(best)
}

/// Levenshtein: how many letters must be put in, taken out or changed.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let changed = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn far_is_no_suggestion() {
        assert_eq!(closest("provdier", &["data", "provider"]), Some("provider"));
        assert_eq!(closest("zzzzzzzz", &["data", "provider"]), None);
    }
}
