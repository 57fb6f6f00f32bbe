//! Translates GBNF, llama.cpp's grammars (called EBNF by SGLang and xgrammar), to Lark.

use std::collections::HashMap;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

use crate::error::GrammarError;
use crate::lark;

/// Whether a grammar is GBNF, whose rules have `::=`; Lark's rules have a single colon.
pub(crate) fn is_gbnf(text: &str) -> bool {
    let code = |line: &str| line.trim_start().starts_with(|c: char| c.is_alphanumeric());
    text.lines().any(|line| code(line) && line.contains("::="))
}

/// Translates a GBNF grammar to Lark. Rules get new names, because case is significant in Lark.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let mut scanner = Scanner {
        rest: text.chars().peekable(),
    };
    let (mut rules, mut out) = (Rules::default(), String::new());
    let mut pending: Option<String> = None;
    while let Some(item) = scanner.next()? {
        match (item, pending.take()) {
            (Item::Defines, Some(name)) => {
                let rule = rules.define(&name)?;
                let _ = write!(out, "\n{rule}:");
            }
            (Item::Defines, None) => {
                return Err(GrammarError::invalid("::= must follow a rule's name"));
            }
            (item, before) => {
                if let Some(name) = before {
                    let _ = write!(out, " {}", rules.name(&name));
                }
                match item {
                    Item::Name(name) => pending = Some(name),
                    Item::Text(text) => out.push_str(&text),
                    Item::Defines => {}
                }
            }
        }
    }
    if let Some(name) = pending {
        let _ = write!(out, " {}", rules.name(&name));
    }
    rules.check()?;
    lark::checked(&out)
}

/// Names of rules in GBNF and in Lark.
#[derive(Default)]
struct Rules {
    names: HashMap<String, (String, bool)>,
}

impl Rules {
    fn name(&mut self, name: &str) -> String {
        self.entry(name).0.clone()
    }

    fn define(&mut self, name: &str) -> Result<String, GrammarError> {
        let entry = self.entry(name);
        if entry.1 {
            return Err(GrammarError::Invalid(format!("{name} is defined twice")));
        }
        entry.1 = true;
        Ok(entry.0.clone())
    }

    fn entry(&mut self, name: &str) -> &mut (String, bool) {
        let number = self.names.len();
        let fresh = || match name {
            "root" => ("start".to_owned(), false),
            _ => (format!("rule_{number}"), false),
        };
        self.names.entry(name.to_owned()).or_insert_with(fresh)
    }

    fn check(&self) -> Result<(), GrammarError> {
        if !self.names.contains_key("root") {
            return Err(GrammarError::invalid(
                "a GBNF grammar must have a rule root",
            ));
        }
        match self.names.iter().find(|(_, (_, defined))| !defined) {
            Some((name, _)) => Err(GrammarError::Invalid(format!("{name} is not defined"))),
            None => Ok(()),
        }
    }
}

enum Item {
    Name(String),
    Defines,
    /// Literal text.
    Text(String),
}

struct Scanner<'a> {
    rest: Peekable<Chars<'a>>,
}

impl Scanner<'_> {
    fn next(&mut self) -> Result<Option<Item>, GrammarError> {
        while let Some(c) = self.rest.next() {
            return Ok(Some(match c {
                '#' => {
                    while self.rest.next_if(|&c| c != '\n').is_some() {}
                    continue;
                }
                c if c.is_whitespace() => continue,
                '"' => Item::Text(format!(" {}", lark::literal(&self.string()?))),
                '[' => Item::Text(format!(" {}", self.class()?)),
                '.' => Item::Text(r" /(.|\n)/".into()),
                '{' => Item::Text(self.repetition()?),
                '(' if self.rest.peek() == Some(&'?') || self.rest.peek() == Some(&'=') => {
                    return Err(GrammarError::invalid("lookahead is not supported"));
                }
                '(' | '|' => Item::Text(format!(" {c}")),
                ')' | '*' | '+' | '?' => Item::Text(c.into()),
                ':' => {
                    let rest = (self.rest.next(), self.rest.next());
                    if rest != (Some(':'), Some('=')) {
                        return Err(GrammarError::invalid("a colon must be part of ::="));
                    }
                    Item::Defines
                }
                c if c.is_ascii_alphanumeric() || c == '_' => Item::Name(self.name(c)),
                c => return Err(GrammarError::Invalid(format!("{c:?} is not GBNF"))),
            }));
        }
        Ok(None)
    }

    fn name(&mut self, first: char) -> String {
        let mut name = String::from(first);
        let more = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        while let Some(c) = self.rest.next_if(more) {
            name.push(c);
        }
        name
    }

    fn repetition(&mut self) -> Result<String, GrammarError> {
        let mut text = String::from("{");
        for c in self.rest.by_ref() {
            match c {
                '}' => return Ok(text + "}"),
                c if c.is_ascii_digit() || c == ',' => text.push(c),
                ' ' => {}
                _ => break,
            }
        }
        Err(GrammarError::invalid(
            "a repetition must be {m}, {m,} or {m,n}",
        ))
    }

    fn string(&mut self) -> Result<String, GrammarError> {
        let mut text = String::new();
        loop {
            match self.rest.next() {
                Some('"') => return Ok(text),
                Some('\\') => text.push(self.escape()?),
                Some(c) => text.push(c),
                None => return Err(GrammarError::invalid("a string has no closing quote")),
            }
        }
    }

    /// A character class as a regular expression, with each character as its code point.
    fn class(&mut self) -> Result<String, GrammarError> {
        let mut class = String::from("/[");
        if self.rest.next_if_eq(&'^').is_some() {
            class.push('^');
        }
        let mut any = false;
        loop {
            match self.rest.next() {
                Some(']') if any => return Ok(class + "]/"),
                Some(']') => return Err(GrammarError::invalid("a class has no characters")),
                Some('-') if any && self.rest.peek() != Some(&']') => class.push('-'),
                Some('\\') => {
                    let c = self.escape()?;
                    let _ = write!(class, "\\x{{{:x}}}", c as u32);
                }
                Some(c) => {
                    let _ = write!(class, "\\x{{{:x}}}", c as u32);
                }
                None => return Err(GrammarError::invalid("a class has no closing bracket")),
            }
            any = true;
        }
    }

    fn escape(&mut self) -> Result<char, GrammarError> {
        let digits = match self.rest.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '/' | '^' | '\'')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            other => {
                let shown = other.map_or("nothing".to_owned(), |c| format!("{c:?}"));
                return Err(GrammarError::Invalid(format!("{shown} cannot be escaped")));
            }
        };
        let code: String = self.rest.by_ref().take(digits).collect();
        // `from_str_radix` would also accept a sign.
        let hex = code.chars().all(|c| c.is_ascii_hexdigit()) && code.len() == digits;
        let number = u32::from_str_radix(&code, 16).ok().filter(|_| hex);
        number.and_then(char::from_u32).ok_or_else(|| {
            GrammarError::Invalid(format!("{code:?} is not a character's {digits} hex digits"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_hex_digits_alone() {
        assert_eq!(
            to_lark(r#"root ::= "\x41\u00e9""#).as_deref(),
            Ok("\nstart: \"Aé\"")
        );
        for digits in [r"\x+f", r"\x4", r"\u+041", r"\U0000-041", r"\u 041"] {
            let error = to_lark(&format!("root ::= \"{digits}\"")).map_err(|e| e.to_string());
            assert!(
                error.as_ref().is_err_and(|e| e.contains("hex digits")),
                "{digits}: {error:?}"
            );
        }
    }
}
