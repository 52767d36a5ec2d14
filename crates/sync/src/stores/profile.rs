//! Profiles of the AWS tools: sections of `~/.aws/credentials` and `~/.aws/config`.
//!
//! Text in, values out; nothing is read here. The values are not shown, for some of them are secret.

use std::{collections::BTreeMap, fmt};

/// Which of the two files it is. They name their sections differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Credentials,
    Config,
}

/// The settings of one profile, by their names in lower case.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Profile(BTreeMap<String, String>);

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Profile {
    /// A setting that says something.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The first setting whose name begins so.
    pub fn beginning(&self, name: &str) -> Option<&str> {
        self.0.keys().map(String::as_str).find(|key| key.starts_with(name))
    }

    /// Takes what the other says where both say something.
    pub fn overlay(&mut self, other: Profile) {
        self.0.extend(other.0);
    }
}

/// The profile of a name; none where the file has no section for it.
pub fn find(text: &str, kind: Kind, name: &str) -> Option<Profile> {
    let mut found: Option<Profile> = None;
    let mut inside = false;
    // How far the last setting is indented: what is indented more belongs to it.
    let mut indent = usize::MAX;
    for line in text.trim_start_matches('\u{feff}').lines() {
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = header(line) {
            inside = is_of(section, kind, name);
            indent = usize::MAX;
            if inside {
                found.get_or_insert_default();
            }
            continue;
        }
        let depth = line.len() - line.trim_start().len();
        if depth > indent {
            continue;
        }
        indent = depth;
        if let (true, Some((key, value))) = (inside, bare.split_once('=')) {
            let settings = &mut found.get_or_insert_default().0;
            settings.insert(key.trim().to_ascii_lowercase(), without_comment(value).to_owned());
        }
    }
    found
}

/// The name between brackets.
fn header(line: &str) -> Option<&str> {
    let (inner, _) = line.strip_prefix('[')?.split_once(']')?;
    Some(inner.trim())
}

fn is_of(section: &str, kind: Kind, name: &str) -> bool {
    let named = match kind {
        Kind::Credentials => Some(section),
        Kind::Config if section == "default" => Some(section),
        Kind::Config => section
            .strip_prefix("profile")
            .filter(|rest| rest.starts_with([' ', '\t']))
            .map(|rest| rest.trim().trim_matches(['"', '\''])),
    };
    named == Some(name)
}

/// A comment begins at a `#` or `;` that stands behind a blank. Keys have none.
fn without_comment(value: &str) -> &str {
    let mut before = ' ';
    for (at, c) in value.char_indices() {
        if matches!(c, '#' | ';') && before.is_whitespace() {
            return value[..at].trim();
        }
        before = c;
    }
    value.trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(profile: &Profile) -> Vec<(&str, &str)> {
        profile.0.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    #[test]
    fn a_section_of_the_credentials() {
        let text = "\u{feff}# mine\r\n[default]\r\nAWS_Access_Key_Id = AKIA\r\naws_secret_access_key=a/b+c==\r\n\
                    ; no\n\n[work]\naws_access_key_id = other # the new one\nnot a setting\n";
        let profile = find(text, Kind::Credentials, "default").unwrap();
        assert_eq!(values(&profile), [("aws_access_key_id", "AKIA"), ("aws_secret_access_key", "a/b+c==")]);
        let work = find(text, Kind::Credentials, "work").unwrap();
        assert_eq!(values(&work), [("aws_access_key_id", "other")]);
        assert_eq!(find(text, Kind::Credentials, "home"), None);
    }

    #[test]
    fn sections_of_the_configuration_are_called_profile() {
        let text = "[default]\nregion = eu-west-1\n[profile work]\nregion=eu-central-1\n[other]\nregion=x\n\
                    [profile \"two words\"]\nregion=y\n[sso-session work]\nsso_region=z\n";
        let region =
            |name| find(text, Kind::Config, name).and_then(|found| found.get("region").map(str::to_owned));
        assert_eq!(region("default").as_deref(), Some("eu-west-1"));
        assert_eq!(region("work").as_deref(), Some("eu-central-1"));
        assert_eq!(region("two words").as_deref(), Some("y"));
        assert_eq!(region("other"), None);
    }

    #[test]
    fn what_is_indented_more_belongs_to_the_setting_above() {
        let text = "[default]\n  region = a\n  s3 =\n    region = wrong\n    addressing_style = path\n  output = json\n";
        let profile = find(text, Kind::Config, "default").unwrap();
        assert_eq!(values(&profile), [("output", "json"), ("region", "a"), ("s3", "")]);
        assert_eq!(profile.get("s3"), None);
    }

    #[test]
    fn a_section_may_come_twice_and_the_last_word_counts() {
        let text = "[a]\nx=1\ny=1\n[b]\nx=9\n[a]\nx=2\n";
        assert_eq!(values(&find(text, Kind::Credentials, "a").unwrap()), [("x", "2"), ("y", "1")]);
        let mut under = find("[a]\nx=0\nz=0\n", Kind::Credentials, "a").unwrap();
        under.overlay(find(text, Kind::Credentials, "a").unwrap());
        assert_eq!(values(&under), [("x", "2"), ("y", "1"), ("z", "0")]);
    }

    #[test]
    fn nonsense_is_no_profile() {
        for text in ["", "[", "[]", "x=1", "[a", "]\n[\n=\n[ ]=", "\u{feff}"] {
            assert_eq!(find(text, Kind::Credentials, "a"), None, "{text:?}");
        }
    }

    #[test]
    fn values_are_not_shown() {
        let profile = find("[a]\nsecret=hush\n", Kind::Credentials, "a").unwrap();
        assert_eq!(format!("{profile:?}"), "{\"secret\"}");
    }
}
