//! Fields of events that servers write in several formats.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// Text in a response: a string, a part `{"type": "text", "text": "..."}`, or a list of parts,
/// whose texts are concatenated. It borrows from the event, unless it has escapes or parts.
#[derive(Debug)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor).map(Self)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of parts")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(""))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
        let mut whole = String::new();
        while let Some(Text(part)) = parts.next_element()? {
            whole.push_str(&part);
        }
        Ok(Cow::Owned(whole))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut part: A) -> Result<Self::Value, A::Error> {
        let mut whole = String::new();
        while let Some(Text(key)) = part.next_key()? {
            if matches!(key.as_ref(), "text" | "thinking" | "refusal") {
                whole.push_str(&part.next_value::<Text<'de>>()?.0);
            } else {
                part.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Cow::Owned(whole))
    }
}

/// A token count: 6, or 6.0 from servers whose language has a single number type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) i64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountVisitor).map(Self)
    }
}

struct CountVisitor;

impl Visitor<'_> for CountVisitor {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number of tokens")
    }

    fn visit_i64<E: Error>(self, count: i64) -> Result<i64, E> {
        Ok(count)
    }

    fn visit_u64<E: Error>(self, count: u64) -> Result<i64, E> {
        i64::try_from(count).map_err(|_| E::invalid_value(Unexpected::Unsigned(count), &self))
    }

    fn visit_f64<E: Error>(self, count: f64) -> Result<i64, E> {
        // 2^53: up to this value a float represents every integer exactly.
        if count.fract() == 0.0 && count.abs() <= 9_007_199_254_740_992.0 {
            #[expect(clippy::cast_possible_truncation, reason = "it is whole and in range")]
            return Ok(count as i64);
        }
        Err(E::invalid_value(Unexpected::Float(count), &self))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn texts_of_all_forms() {
        for (json, text) in [
            (r#""plain""#, "plain"),
            (r#""a\n\u00e9""#, "a\né"),
            (
                r#"[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]"#,
                "ab",
            ),
            (
                r#"["a", null, {"text": null, "index": 0}, {"type": "image_url"}, "b"]"#,
                "ab",
            ),
            (
                r#"[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]"#,
                "hm",
            ),
            ("[]", ""),
        ] {
            assert_eq!(
                serde_json::from_str::<Text<'_>>(json).unwrap().0,
                text,
                "{json}"
            );
        }
        for wrong in ["7", "true", "[7]", r#"{"text": 7}"#] {
            assert!(serde_json::from_str::<Text<'_>>(wrong).is_err(), "{wrong}");
        }
        assert!(serde_json::from_str::<Text<'_>>(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn counts_of_all_forms() {
        for (json, count) in [("6", 6), ("6.0", 6), ("6e2", 600), ("-1", -1), ("0.0", 0)] {
            let read: Count = serde_json::from_str(json).unwrap();
            assert_eq!(read, Count(count), "{json}");
        }
        for wrong in [
            "6.5",
            "1e300",
            "18446744073709551615",
            r#""6""#,
            "true",
            "[6]",
        ] {
            assert!(serde_json::from_str::<Count>(wrong).is_err(), "{wrong}");
        }
    }
}
