//! Conversion of Python literals to JSON, for calls in Python syntax.

use serde_json::{Map, Number, Value};

/// Maximum nesting of lists and dictionaries.
const MAX_DEPTH: u32 = 64;

/// Converts keyword arguments `a=1, b='x'` (the text between a call's brackets) to an object;
/// `None` if a value is not a literal.
pub(crate) fn arguments(text: &str) -> Option<Map<String, Value>> {
    let mut reader = Reader { rest: text };
    let mut map = Map::new();
    reader.spaces();
    while !reader.rest.is_empty() {
        let name = reader.word()?;
        reader.spaces();
        reader.one('=')?;
        map.insert(name.to_owned(), reader.value(MAX_DEPTH)?);
        reader.spaces();
        if !reader.rest.is_empty() {
            reader.one(',')?;
            reader.spaces();
        }
    }
    Some(map)
}

/// Converts a single literal.
pub(crate) fn literal(text: &str) -> Option<Value> {
    let mut reader = Reader { rest: text };
    let value = reader.value(MAX_DEPTH)?;
    reader.spaces();
    reader.rest.is_empty().then_some(value)
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn one(&mut self, expected: char) -> Option<()> {
        self.rest = self.rest.strip_prefix(expected)?;
        Some(())
    }

    fn word(&mut self) -> Option<&'a str> {
        let part = |c: char| c.is_alphanumeric() || c == '_';
        let end = self.rest.find(|c| !part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        let starts = word.starts_with(|c: char| c.is_alphabetic() || c == '_');
        starts.then_some(word)
    }

    fn value(&mut self, depth: u32) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        self.spaces();
        match self.rest.chars().next()? {
            '\'' | '"' => self.string().map(Value::String),
            '[' => self.items('[', ']', depth),
            '(' => self.items('(', ')', depth),
            '{' => self.dictionary(depth),
            '-' | '+' | '.' | '0'..='9' => self.number(),
            _ => match self.word()? {
                "True" | "true" => Some(Value::Bool(true)),
                "False" | "false" => Some(Value::Bool(false)),
                "None" | "null" => Some(Value::Null),
                _ => None,
            },
        }
    }

    fn number(&mut self) -> Option<Value> {
        let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.' | '_');
        let end = self.rest.find(|c| !part(c)).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let text = text.replace('_', "");
        if let Ok(integer) = text.parse::<i64>() {
            return Some(integer.into());
        }
        Number::from_f64(text.parse().ok()?).map(Value::Number)
    }

    fn items(&mut self, open: char, close: char, depth: u32) -> Option<Value> {
        self.one(open)?;
        let mut items = Vec::new();
        loop {
            self.spaces();
            if self.one(close).is_some() {
                return Some(Value::Array(items));
            }
            items.push(self.value(depth)?);
            self.spaces();
            if !self.rest.starts_with(close) {
                self.one(',')?;
            }
        }
    }

    fn dictionary(&mut self, depth: u32) -> Option<Value> {
        self.one('{')?;
        let mut map = Map::new();
        loop {
            self.spaces();
            if self.one('}').is_some() {
                return Some(Value::Object(map));
            }
            let key = match self.value(depth)? {
                Value::String(key) => key,
                Value::Number(key) => key.to_string(),
                _ => return None,
            };
            self.spaces();
            self.one(':')?;
            map.insert(key, self.value(depth)?);
            self.spaces();
            if !self.rest.starts_with('}') {
                self.one(',')?;
            }
        }
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.rest.chars().next()?;
        let mut chars = self.rest[1..].char_indices();
        let mut text = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                _ if c == quote => {
                    self.rest = &self.rest[1 + at + 1..];
                    return Some(text);
                }
                '\\' => escape(&mut chars, &mut text)?,
                _ => text.push(c),
            }
        }
        None
    }
}

fn escape(chars: &mut std::str::CharIndices<'_>, text: &mut String) -> Option<()> {
    let (_, kind) = chars.next()?;
    let digits = match kind {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => {
            match kind {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                '0' => text.push('\0'),
                '\\' | '\'' | '"' => text.push(kind),
                '\n' => {}
                other => text.extend(['\\', other]),
            }
            return Some(());
        }
    };
    let mut code = 0;
    for _ in 0..digits {
        code = code * 16 + chars.next()?.1.to_digit(16)?;
    }
    text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals() {
        let read = arguments(r#"a=1, b='x\'\n', c=[True, None, -2.5], d={"k": (1,)}, e="é\u00e9""#);
        let expected = serde_json::json!({
            "a": 1, "b": "x'\n", "c": [true, null, -2.5], "d": {"k": [1]}, "e": "éé"
        });
        assert_eq!(read.map(Value::Object), Some(expected));
        assert_eq!(arguments("").map(|map| map.len()), Some(0));
        for text in [
            "1", "a", "a=", "a=b", "a=1 b=2", "a='x", "a=[1", "a=f(1)", "a=1,,b=2",
        ] {
            assert_eq!(arguments(text), None, "{text}");
        }
        assert_eq!(arguments(&format!("a={}", "[".repeat(100_000))), None);
    }
}
