//! GBNF, llama.cpp's grammars (also called EBNF by SGLang and xgrammar), to Lark.

use std::collections::HashMap;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

use crate::error::GrammarError;
use crate::lark;

/// Whether a grammar is GBNF: Lark's rules have one colon.
pub(crate) fn is_gbnf(text: &str) -> bool {
    let code = |line: &str| line.trim_start().starts_with(|c: char| c.is_alphanumeric());
    text.lines().any(|line| code(line) && line.contains("::="))
}

/// The Lark text of a GBNF grammar. Rules get new names: case has a meaning in Lark.
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
            (Item::Defines, None) => return Err(GrammarError::invalid("::= without a name")),
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

/// Names of rules as GBNF and as Lark has them.
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
            return Err(GrammarError::invalid("there is no rule root"));
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
    /// What is written as it is.
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
                        return Err(GrammarError::invalid("a colon outside ::="));
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
        Err(GrammarError::invalid("a repetition is {m,n}"))
    }

    fn string(&mut self) -> Result<String, GrammarError> {
        let mut text = String::new();
        loop {
            match self.rest.next() {
                Some('"') => return Ok(text),
                Some('\\') => text.push(self.escape()?),
                Some(c) => text.push(c),
                None => return Err(GrammarError::invalid("a string does not end")),
            }
        }
    }

    /// A class of characters as a regular expression, each of them by its number.
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
                None => return Err(GrammarError::invalid("a class does not end")),
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
        let number = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
        number.ok_or_else(|| GrammarError::Invalid(format!("{code} is not a character")))
    }
}
