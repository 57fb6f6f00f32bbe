//! A JSON object split into its top-level fields, each still raw text, so that a value of the wrong
//! type is reported with the name of its field.

use std::collections::HashMap;
use std::fmt;

use serde::de::{DeserializeOwned, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::error::ApiError;

/// Upper bound on fields per request body, repeated ones included.
const MAX_FIELDS: usize = 256;

/// The fields of one request body that have not been taken yet.
///
/// Splitting does not recurse, and values deserialised later are subject to serde_json's depth
/// limit of 128, so deeply nested brackets are an error and not a stack overflow. For a repeated
/// field the last value wins.
pub struct Fields<'a> {
    rest: HashMap<String, &'a RawValue>,
    #[cfg(test)]
    body: usize,
}

/// Records the names of the fields that parsers take; a test compares them with the documented
/// fields.
#[cfg(test)]
pub(crate) mod asked {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local! {
        /// One set of names for each body that was parsed, in order.
        static ASKED: RefCell<Vec<BTreeSet<String>>> = const { RefCell::new(Vec::new()) };
    }

    pub(crate) fn begin() {
        ASKED.take();
    }

    /// The names of the fields taken from the first body since [`begin`].
    pub(crate) fn first() -> BTreeSet<String> {
        ASKED.with_borrow(|bodies| bodies[0].clone())
    }

    pub(super) fn body() -> usize {
        ASKED.with_borrow_mut(|bodies| {
            bodies.push(BTreeSet::new());
            bodies.len() - 1
        })
    }

    pub(super) fn name(body: usize, name: &str) {
        ASKED.with_borrow_mut(|bodies| {
            if let Some(names) = bodies.get_mut(body) {
                names.insert(name.to_owned());
            }
        });
    }
}

impl<'a> Fields<'a> {
    /// Splits `body`. Anything but one UTF-8 JSON object is a 400.
    pub fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let text = std::str::from_utf8(body).map_err(|e| {
            ApiError::bad_request(format!(
                "The request body is not UTF-8 at byte {}.",
                e.valid_up_to()
            ))
        })?;
        let Split(rest) = serde_json::from_str(text).map_err(|e| {
            ApiError::bad_request(format!("The request body is not a JSON object: {e}."))
        })?;
        Ok(Self {
            rest,
            #[cfg(test)]
            body: asked::body(),
        })
    }

    fn remove(&mut self, name: &str) -> Option<&'a RawValue> {
        #[cfg(test)]
        asked::name(self.body, name);
        self.rest.remove(name)
    }

    /// Whether a field is present and not `null`.
    pub fn has(&self, name: &str) -> bool {
        self.rest.get(name).is_some_and(|raw| raw.get() != "null")
    }

    /// The raw text of a field, without removing it.
    pub(super) fn peek(&self, name: &str) -> Option<&'a str> {
        self.rest.get(name).map(|raw| raw.get())
    }

    /// Removes a field. `null` is the same as absent.
    pub fn take_raw(&mut self, name: &'static str) -> Option<&'a RawValue> {
        self.remove(name).filter(|raw| raw.get() != "null")
    }

    /// Removes a field and reads it as `T`.
    pub fn take<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<Option<T>, ApiError> {
        self.take_raw(name).map(|raw| read(name, raw)).transpose()
    }

    /// Removes a field; distinguishes `null` (`Some(None)`) from an absent field (`None`).
    pub fn take_nullable<T: DeserializeOwned>(
        &mut self,
        name: &'static str,
    ) -> Result<Option<Option<T>>, ApiError> {
        self.remove(name).map(|raw| read(name, raw)).transpose()
    }

    /// Removes a boolean field.
    pub fn flag(&mut self, name: &'static str, default: bool) -> Result<bool, ApiError> {
        Ok(self.take(name)?.unwrap_or(default))
    }

    /// Removes a field whose value must be one of two words.
    pub(super) fn one_of(
        &mut self,
        name: &'static str,
        words: [&'static str; 2],
    ) -> Result<Option<&'static str>, ApiError> {
        let Some(given) = self.take::<String>(name)? else {
            return Ok(None);
        };
        let word = words.into_iter().find(|word| *word == given);
        word.map(Some).ok_or_else(|| {
            let message = format!(
                "{name} must be {} or {}, got {given:.40?}.",
                words[0], words[1]
            );
            ApiError::invalid(name, message)
        })
    }

    /// Removes an integer that must lie in `range`.
    pub fn integer(
        &mut self,
        name: &'static str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take::<Number>(name)? else {
            return Ok(None);
        };
        value.integer(name, range).map(Some)
    }

    /// Removes a number and validates it; `allowed` describes the valid range.
    pub fn number(
        &mut self,
        name: &'static str,
        allowed: &str,
        fits: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, ApiError> {
        let Some(number) = self.take::<Number>(name)? else {
            return Ok(None);
        };
        let value = number.value(name)?;
        if fits(value) {
            return Ok(Some(value));
        }
        let message = format!("{name} must be {allowed}, got {value}.");
        Err(ApiError::invalid(name, message))
    }

    pub(super) fn remaining(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.rest.iter().map(|(name, raw)| (name.as_str(), *raw))
    }
}

/// The fields of an object, at most [`MAX_FIELDS`].
#[derive(Deserialize)]
#[serde(transparent)]
struct Split<'a>(#[serde(borrow, deserialize_with = "split")] HashMap<String, &'a RawValue>);

fn split<'de, D: Deserializer<'de>>(from: D) -> Result<HashMap<String, &'de RawValue>, D::Error> {
    from.deserialize_map(SplitVisitor)
}

struct SplitVisitor;

impl<'de> Visitor<'de> for SplitVisitor {
    type Value = HashMap<String, &'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut fields = HashMap::new();
        for _ in 0..MAX_FIELDS {
            let Some((name, value)) = map.next_entry()? else {
                return Ok(fields);
            };
            fields.insert(name, value);
        }
        match map.next_key::<IgnoredAny>()? {
            None => Ok(fields),
            Some(_) => Err(M::Error::custom(format!("more than {MAX_FIELDS} fields"))),
        }
    }
}

/// A number as clients write it: `5`, `5.0`, `"5"`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number")]
pub(super) enum Number {
    Integer(i64),
    /// Above the largest `i64`.
    Large(u64),
    Float(f64),
    Text(String),
}

impl Number {
    /// The integer, which must lie in `range`.
    pub(super) fn integer(
        &self,
        name: &'static str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<i64, ApiError> {
        let value = match self {
            Self::Integer(value) => i128::from(*value),
            Self::Large(value) => i128::from(*value),
            Self::Text(text) => match text.trim().parse() {
                Ok(value) => value,
                Err(_) => self.whole(name)?,
            },
            Self::Float(_) => self.whole(name)?,
        };
        let (low, high) = (i128::from(*range.start()), i128::from(*range.end()));
        match i64::try_from(value) {
            Ok(value) if range.contains(&value) => Ok(value),
            _ if value < low && Self::is_open(high) => {
                Err(Self::refusal(name, &format!("at least {low}"), value))
            }
            _ if Self::is_open(high) => Err(Self::refusal(name, &format!("at most {high}"), value)),
            _ => Err(Self::refusal(
                name,
                &format!("between {low} and {high}"),
                value,
            )),
        }
    }

    /// Whether the upper bound is only that of the integer type, which errors about small values
    /// omit.
    fn is_open(high: i128) -> bool {
        high == i128::from(u32::MAX) || high == i128::from(i32::MAX)
    }

    /// Converts an integral float.
    fn whole(&self, name: &'static str) -> Result<i128, ApiError> {
        let value = self.value(name)?;
        if value.fract() != 0.0 || !value.is_finite() {
            return Err(Self::refusal(name, "an integer", value));
        }
        // Above 2^53 floats cannot represent every integer, so the intended value is ambiguous.
        // Beyond 64 bits every value is out of range anyway.
        match value.abs() {
            ..=9_007_199_254_740_992.0 | 9_223_372_036_854_775_808.0.. => Ok(value as i128),
            _ => {
                let written = "written without fraction or exponent where it is above 2^53";
                Err(Self::refusal(name, written, value))
            }
        }
    }

    fn value(&self, name: &'static str) -> Result<f64, ApiError> {
        match self {
            Self::Integer(value) => Ok(*value as f64),
            Self::Large(value) => Ok(*value as f64),
            Self::Float(value) => Ok(*value),
            Self::Text(text) => match text.trim().parse() {
                Ok(value) => Ok(value),
                Err(_) => Err(Self::refusal(name, "a number", format!("{text:.40?}"))),
            },
        }
    }

    fn refusal(name: &'static str, what: &str, got: impl std::fmt::Display) -> ApiError {
        ApiError::invalid(name, format!("{name} must be {what}, got {got}."))
    }
}

/// Reads one raw value; the error names the field.
pub(super) fn read<T: DeserializeOwned>(name: &'static str, raw: &RawValue) -> Result<T, ApiError> {
    serde_json::from_str(raw.get())
        .map_err(|e| ApiError::invalid(name, format!("{name}: {}.", reason(&e))))
}

/// Reads one raw value that must be an object: for `T`, serde would also accept a list of its
/// members' values.
pub(super) fn read_object<T: DeserializeOwned>(
    name: &'static str,
    raw: &RawValue,
    example: &str,
) -> Result<T, ApiError> {
    if !raw.get().starts_with('{') {
        let message = format!(
            "{name} must be an object such as {example}, got {:.40}.",
            raw.get()
        );
        return Err(ApiError::invalid(name, message));
    }
    read(name, raw)
}

/// serde_json's message in the terms of JSON, without the position, which is relative to the field
/// and not to the body.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text
        .rsplit_once(" at line ")
        .map_or(&*text, |(head, _)| head);
    let Some((got, expected)) = text
        .strip_prefix("invalid type: ")
        .and_then(|rest| rest.rsplit_once(", expected "))
    else {
        return text.to_owned();
    };
    let got = match got {
        "sequence" => "an array",
        "map" => "an object",
        other => other,
    };
    let expected = match expected {
        "a sequence" => "an array",
        "a map" => "an object",
        other => other.strip_prefix("struct ").map_or(other, |_| "an object"),
    };
    format!("expected {expected}, got {}", got.replace('`', ""))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn integer(json: &str, range: std::ops::RangeInclusive<i64>) -> Result<i64, String> {
        let body = format!("{{\"n\": {json}}}");
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        let value = fields.integer("n", range).map(Option::unwrap);
        value.map_err(|error| error.message)
    }

    #[test]
    fn wrong_types_have_the_names_of_json() {
        for (json, wanted) in [
            (r#"{"n": "hi"}"#, "n: expected an array, got string \"hi\"."),
            (r#"{"n": 5}"#, "n: expected an array, got integer 5."),
            (r#"{"n": {}}"#, "n: expected an array, got an object."),
            (r#"{"n": [[]]}"#, "n: expected a string, got an array."),
            (r#"{"n": ["x", null]}"#, "n: expected a string, got null."),
        ] {
            let mut fields = Fields::parse(json.as_bytes()).unwrap();
            let error = fields.take::<Vec<String>>("n").unwrap_err();
            assert_eq!(error.message, wanted, "{json}");
        }
    }

    #[test]
    fn integers_of_all_sizes() {
        let all = i64::MIN..=i64::MAX;
        for (json, value) in [
            ("5", 5),
            ("5.0", 5),
            ("\"-5\"", -5),
            ("\" 5 \"", 5),
            ("\"5.0\"", 5),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
            ("9007199254740992.0", 1 << 53),
        ] {
            assert_eq!(integer(json, all.clone()), Ok(value), "{json}");
        }
        let (low, high) = (i64::MIN, i64::MAX);
        for (json, range, message) in [
            (
                "1000000000000",
                1..=i64::from(u32::MAX),
                "n must be at most 4294967295, got 1000000000000.",
            ),
            ("0", 1..=i64::from(u32::MAX), "n must be at least 1, got 0."),
            ("9", 0..=8, "n must be between 0 and 8, got 9."),
            ("\"x\"", 0..=8, "n must be a number, got \"x\"."),
            ("\"1.5\"", 0..=8, "n must be an integer, got 1.5."),
            ("1.5", all.clone(), "n must be an integer, got 1.5."),
            (
                "9223372036854775808",
                all.clone(),
                &format!("n must be between {low} and {high}, got 9223372036854775808."),
            ),
            (
                "\"-9223372036854775809\"",
                all.clone(),
                &format!("n must be between {low} and {high}, got -9223372036854775809."),
            ),
            (
                "100000000000000000000",
                all.clone(),
                &format!("n must be between {low} and {high}, got 100000000000000000000."),
            ),
            (
                "1e17",
                all.clone(),
                "n must be written without fraction or exponent where it is above 2^53, got \
                 100000000000000000.",
            ),
        ] {
            assert_eq!(integer(json, range), Err(message.to_owned()), "{json}");
        }
    }

    #[test]
    fn an_object_is_no_list_and_no_text() {
        for json in ["\"json_object\"", "[\"json_object\"]", "3"] {
            let body = format!("{{\"f\": {json}}}");
            let mut fields = Fields::parse(body.as_bytes()).unwrap();
            let raw = fields.take_raw("f").unwrap();
            let error = read_object::<serde_json::Value>("f", raw, "{\"a\": 1}").unwrap_err();
            let message = format!("f must be an object such as {{\"a\": 1}}, got {json}.");
            assert_eq!(
                (error.message, error.param.as_deref()),
                (message, Some("f"))
            );
        }
    }
}
