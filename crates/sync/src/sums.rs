//! Checksums of bodies: MD5, which the state file's format asks for, and BLAKE3, which is believed.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, io};

/// Bytes that are written as lower-case hex digits.
macro_rules! hex_bytes {
    ($name:ident, $size:literal, $what:literal) => {
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; $size]);

        impl $name {
            fn digits<'a>(&self, text: &'a mut [u8; 2 * $size]) -> &'a str {
                for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
                    pair.copy_from_slice(&PAIRS[usize::from(byte)]);
                }
                // Only digits are in it.
                std::str::from_utf8(text).unwrap_or_default()
            }

            pub fn parse(text: &str) -> Option<Self> {
                let digits = text.as_bytes();
                if digits.len() != 2 * $size {
                    return None;
                }
                let (mut bytes, mut seen) = ([0; $size], 0);
                for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
                    let (high, low) = (VALUES[usize::from(pair[0])], VALUES[usize::from(pair[1])]);
                    seen |= high | low;
                    *byte = high << 4 | low & 15;
                }
                (seen < 16).then_some($name(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.digits(&mut [0; 2 * $size]))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match serializer.is_human_readable() {
                    true => serializer.serialize_str(self.digits(&mut [0; 2 * $size])),
                    false => serializer.serialize_bytes(&self.0),
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Bytes;
                impl de::Visitor<'_> for Bytes {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($what)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        $name::parse(text).ok_or_else(|| E::custom(format!("`{text}` is not {}", $what)))
                    }
                    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<$name, E> {
                        let bytes = bytes.try_into().map_err(|_| E::invalid_length(bytes.len(), &self))?;
                        Ok($name(bytes))
                    }
                }
                match deserializer.is_human_readable() {
                    true => deserializer.deserialize_str(Bytes),
                    false => deserializer.deserialize_bytes(Bytes),
                }
            }
        }
    };
}

/// Manifests are mostly digits: tables, so that reading and writing them costs little.
const PAIRS: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let (mut pairs, mut byte) = ([[0; 2]; 256], 0);
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    pairs
};

/// What a digit stands for; more than 15 where it is none.
const VALUES: [u8; 256] = {
    let (mut values, mut value) = ([0xff; 256], 0);
    while value < 16 {
        let lower = PAIRS[value][1];
        values[lower as usize] = value as u8;
        values[lower.to_ascii_uppercase() as usize] = value as u8;
        value += 1;
    }
    values
};

hex_bytes!(Md5, 16, "an MD5 checksum of 32 hex digits");
hex_bytes!(Strong, 32, "a BLAKE3 hash of 64 hex digits");

impl Strong {
    pub fn of(bytes: &[u8]) -> Strong {
        Strong(*blake3::hash(bytes).as_bytes())
    }
}

/// What identifies a body. Without the strong hash it comes from an older writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Sums {
    pub md5: Md5,
    pub strong: Option<Strong>,
}

impl Sums {
    pub fn of(bytes: &[u8]) -> Sums {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// Whether both are of one body, as far as both say.
    pub fn agree(&self, other: &Sums) -> bool {
        let strong = match (self.strong, other.strong) {
            (Some(own), Some(others)) => own == others,
            _ => true,
        };
        self.md5 == other.md5 && strong
    }
}

/// Both checksums of a body that comes in pieces.
#[derive(Clone)]
pub struct Hasher {
    md5: md5::Md5,
    strong: Box<blake3::Hasher>,
}

impl Default for Hasher {
    fn default() -> Self {
        Hasher { md5: md5::Digest::new(), strong: Box::default() }
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher")
    }
}

impl Hasher {
    pub fn update(&mut self, bytes: &[u8]) {
        md5::Digest::update(&mut self.md5, bytes);
        self.strong.update(bytes);
    }

    pub fn finish(self) -> Sums {
        let md5 = Md5(md5::Digest::finalize(self.md5).into());
        Sums { md5, strong: Some(Strong(*self.strong.finalize().as_bytes())) }
    }
}

impl io::Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s1_checksums_are_md5_in_hex() {
        assert_eq!(Sums::of(b"test").md5.to_string(), "098f6bcd4621d373cade4e832627b4f6");
        assert_eq!(Md5::parse("098F6BCD4621D373CADE4E832627B4F6"), Some(Sums::of(b"test").md5));
        assert_eq!(Md5::parse("098f"), None);
        assert_eq!(Md5::parse("zz8f6bcd4621d373cade4e832627b4f6"), None);
    }

    #[test]
    fn a_strong_hash_decides_where_both_have_one() {
        let whole = Sums::of(b"a");
        let old = Sums { strong: None, ..whole };
        let forged = Sums { strong: Some(Strong([0; 32])), ..whole };
        assert!(whole.agree(&old) && old.agree(&whole) && old.agree(&forged));
        assert!(!whole.agree(&forged));
    }
}
