//! Lexer of template sources, with Jinja2's white-space rules for `trim_blocks` and
//! `lstrip_blocks`.

use std::sync::Arc;

use super::error::Error;
use super::text::is_space;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Data(Arc<str>),
    BlockBegin,
    BlockEnd,
    VariableBegin,
    VariableEnd,
    Name(Arc<str>),
    Str(String),
    Int(i128),
    Float(f64),
    Op(&'static str),
    End,
}

/// Operators, longest first, so that `//` is not read as two divisions.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

/// A token and its line number.
pub(super) type Placed = (Token, u32);

pub(super) fn tokens(source: &str) -> Result<Vec<Placed>, Error> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer {
        source,
        at: 0,
        line: 1,
        line_starts: true,
        found: Vec::new(),
    };
    while lexer.at < source.len() {
        lexer.root()?;
    }
    let line = lexer.line;
    lexer.found.push((Token::End, line));
    Ok(lexer.found)
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: u32,
    /// Whether the text before `at` ends with a line break.
    line_starts: bool,
    found: Vec<Placed>,
}

#[derive(Clone, Copy, PartialEq)]
enum Tag {
    Block,
    Variable,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn push(&mut self, token: Token) {
        self.found.push((token, self.line));
    }

    /// Advances by `bytes`.
    fn skip(&mut self, bytes: usize) {
        let passed = &self.source[self.at..self.at + bytes];
        self.line += passed.matches('\n').count() as u32;
        self.line_starts = passed.ends_with('\n');
        self.at += bytes;
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T, Error> {
        Err(Error::syntax(message, self.line))
    }

    /// Lexes the text up to the next tag, and the tag.
    fn root(&mut self) -> Result<(), Error> {
        let rest = self.rest();
        let Some(start) = next_tag(rest) else {
            self.data(rest);
            self.skip(rest.len());
            return Ok(());
        };
        let kind = rest.as_bytes()[start + 1];
        let sign = sign_of(&rest[start + 2..]);
        let text = kept(&rest[..start], sign, kind != b'{', self.line_starts);
        self.data(text);
        self.skip(start);
        let opened = 2 + sign.map_or(0, |_| 1);
        match kind {
            b'#' => {
                self.skip(opened);
                self.comment()
            }
            b'{' => {
                self.push(Token::VariableBegin);
                self.skip(opened);
                self.tag(Tag::Variable)
            }
            _ => match raw_begin(self.rest()) {
                Some(length) => {
                    self.skip(length);
                    self.raw()
                }
                None => {
                    self.push(Token::BlockBegin);
                    self.skip(opened);
                    self.tag(Tag::Block)
                }
            },
        }
    }

    fn data(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Token::Data(text.into()));
        }
    }

    fn comment(&mut self) -> Result<(), Error> {
        let rest = self.rest();
        let Some(end) = rest.find("#}") else {
            return self.fail("Missing end of comment tag");
        };
        let (sign, after) = (rest[..end].chars().next_back(), &rest[end + 2..]);
        self.skip(end + 2 + trimmed(sign, after));
        Ok(())
    }

    fn raw(&mut self) -> Result<(), Error> {
        let rest = self.rest();
        for (start, _) in rest.match_indices("{%") {
            let sign = sign_of(&rest[start + 2..]);
            let inside = &rest[start + 2 + sign.map_or(0, |_| 1)..];
            let Some(inside) = skip_spaces(inside).strip_prefix("endraw") else {
                continue;
            };
            let inside = skip_spaces(inside);
            let Some(length) = tag_end(inside, "%}", true) else {
                continue;
            };
            let text = kept(&rest[..start], sign, true, self.line_starts);
            self.data(text);
            self.skip(rest.len() - inside.len() + length);
            return Ok(());
        }
        self.fail("Missing end of raw directive")
    }

    /// Lexes the tokens inside a tag, and its end.
    fn tag(&mut self, kind: Tag) -> Result<(), Error> {
        let mut open: Vec<&str> = Vec::new();
        let (close, trims) = match kind {
            Tag::Block => ("%}", true),
            Tag::Variable => ("}}", false),
        };
        loop {
            let rest = self.rest();
            let Some(first) = rest.chars().next() else {
                let end = if trims { "block" } else { "print statement" };
                return self.fail(format!(
                    "unexpected end of template, expected 'end of {end}'"
                ));
            };
            if open.is_empty()
                && let Some(length) = tag_end(rest, close, trims)
            {
                self.push(match kind {
                    Tag::Block => Token::BlockEnd,
                    Tag::Variable => Token::VariableEnd,
                });
                self.skip(length);
                return Ok(());
            }
            if is_space(first) {
                self.skip(first.len_utf8());
                continue;
            }
            let after_dot = self.source[..self.at].ends_with('.');
            if let Some((token, length)) = number(rest, after_dot) {
                let token = token.map_err(|reason| Error::syntax(reason, self.line))?;
                self.push(token);
                self.skip(length);
                continue;
            }
            if first.is_alphanumeric() || first == '_' {
                let word = |c: char| c.is_alphanumeric() || c == '_';
                let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
                if first.is_numeric() {
                    return self.fail("Invalid character in identifier");
                }
                self.push(Token::Name(rest[..end].into()));
                self.skip(end);
                continue;
            }
            if matches!(first, '\'' | '"') {
                let Some(end) = string_end(rest, first) else {
                    return self.fail(format!("unexpected char {first:?}"));
                };
                let text = unescaped(&rest[1..end]);
                let text = text.map_err(|reason| Error::syntax(reason, self.line))?;
                self.push(Token::Str(text));
                self.skip(end + 1);
                continue;
            }
            let Some(operator) = OPERATORS.into_iter().find(|op| rest.starts_with(op)) else {
                return self.fail(format!("unexpected char {first:?}"));
            };
            match operator {
                "(" => open.push(")"),
                "[" => open.push("]"),
                "{" => open.push("}"),
                ")" | "]" | "}" => match open.pop() {
                    Some(expected) if expected == operator => {}
                    Some(expected) => {
                        let message = format!("unexpected '{operator}', expected '{expected}'");
                        return self.fail(message);
                    }
                    None => return self.fail(format!("unexpected '{operator}'")),
                },
                _ => {}
            }
            self.push(Token::Op(operator));
            self.skip(operator.len());
        }
    }
}

fn next_tag(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let pairs = bytes.windows(2).enumerate();
    let mut tags = pairs.filter(|(_, pair)| pair[0] == b'{' && b"%{#".contains(&pair[1]));
    tags.next().map(|(at, _)| at)
}

fn sign_of(text: &str) -> Option<char> {
    text.chars().next().filter(|c| matches!(c, '-' | '+'))
}

/// The text before a tag, without white space that the tag strips.
fn kept(text: &str, sign: Option<char>, strips: bool, line_starts: bool) -> &str {
    match sign {
        Some('-') => text.trim_end_matches(is_space),
        None if strips => {
            let line = text.rfind('\n').map_or(0, |at| at + 1);
            let begins = line > 0 || line_starts;
            let blank = text[line..].chars().all(is_space) && line < text.len();
            if begins && blank { &text[..line] } else { text }
        }
        _ => text,
    }
}

/// Bytes of white space after a tag that its end strips.
fn trimmed(sign: Option<char>, after: &str) -> usize {
    match sign {
        Some('-') => after.len() - skip_spaces(after).len(),
        Some('+') => 0,
        _ => usize::from(after.starts_with('\n')),
    }
}

/// Length of a tag's end, if the text starts with one.
fn tag_end(text: &str, close: &str, is_block: bool) -> Option<usize> {
    let sign = sign_of(text).filter(|sign| *sign == '-' || is_block);
    let signed = usize::from(sign.is_some());
    let after = text[signed..].strip_prefix(close)?;
    let trimmed = match (sign, is_block) {
        (None, false) => 0,
        (sign, _) => trimmed(sign, after),
    };
    Some(signed + close.len() + trimmed)
}

/// Length of `{% raw %}`, if the text starts with it.
fn raw_begin(text: &str) -> Option<usize> {
    let inside = text.strip_prefix("{%")?;
    let inside = inside.strip_prefix(['-', '+']).unwrap_or(inside);
    let inside = skip_spaces(skip_spaces(inside).strip_prefix("raw")?);
    let after = match inside.strip_prefix("-%}") {
        Some(after) => skip_spaces(after),
        None => inside.strip_prefix("%}")?,
    };
    Some(text.len() - after.len())
}

fn skip_spaces(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// Length of a run of digits, with single underscores between them.
fn digits(text: &str, is_digit: impl Fn(u8) -> bool) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let underscore = bytes[at] == b'_' && at > 0 && bytes[at - 1] != b'_';
        let follows = bytes.get(at + 1).is_some_and(|&b| is_digit(b));
        if !(is_digit(bytes[at]) || underscore && follows) {
            break;
        }
        at += 1;
    }
    at
}

type Number = Result<Token, String>;

fn number(text: &str, after_dot: bool) -> Option<(Number, usize)> {
    let decimal = |b: u8| b.is_ascii_digit();
    let whole = digits(text, decimal);
    if whole == 0 {
        return None;
    }
    if !after_dot && let Some(length) = float_length(text, whole) {
        let plain = text[..length].replace('_', "");
        let value = plain.parse().map_err(|_| format!("bad number {plain}"));
        return Some((value.map(Token::Float), length));
    }
    let based = |prefix: &str, radix: u32| {
        let inside = text.strip_prefix(prefix)?;
        let valid = |b: u8| (b as char).is_digit(radix);
        let inside = inside.strip_prefix('_').unwrap_or(inside);
        let length = digits(inside, valid);
        let skipped = text.len() - inside.len();
        (length > 0).then(|| (radix, skipped, skipped + length))
    };
    let found = based("0b", 2)
        .or_else(|| based("0B", 2))
        .or_else(|| based("0o", 8))
        .or_else(|| based("0O", 8))
        .or_else(|| based("0x", 16))
        .or_else(|| based("0X", 16));
    let zeros = digits(text, |b| b == b'0');
    let (radix, from, to) = match found {
        Some(found) => found,
        None if zeros > 0 => (10, 0, zeros),
        None => (10, 0, whole),
    };
    let plain = text[from..to].replace('_', "");
    let value = i128::from_str_radix(&plain, radix).map_err(|_| "number too large".to_owned());
    Some((value.map(Token::Int), to))
}

fn float_length(text: &str, whole: usize) -> Option<usize> {
    let decimal = |b: u8| b.is_ascii_digit();
    let mut length = whole;
    let mut is_float = false;
    if let Some(fraction) = text[whole..].strip_prefix('.') {
        let count = digits(fraction, decimal);
        if count > 0 {
            length += 1 + count;
            is_float = true;
        }
    }
    if let Some(exponent) = text[length..].strip_prefix(['e', 'E']) {
        let signed = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        let count = digits(signed, decimal);
        if count > 0 {
            length = text.len() - signed.len() + count;
            is_float = true;
        }
    }
    is_float.then_some(length)
}

/// End of the string literal at the start of the text.
fn string_end(text: &str, quote: char) -> Option<usize> {
    let mut characters = text.char_indices().skip(1);
    while let Some((at, c)) = characters.next() {
        if c == quote {
            return Some(at);
        }
        if c == '\\' {
            characters.next()?;
        }
    }
    None
}

fn unescaped(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(code) = rest.chars().next() else {
            return Err("\\ at end of string".to_owned());
        };
        rest = &rest[code.len_utf8()..];
        let plain = match code {
            '\n' => continue,
            '\\' | '\'' | '"' => code,
            'a' => '\x07',
            'b' => '\x08',
            'f' => '\x0c',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\x0b',
            '0'..='7' => {
                let octal = |c: char| c.is_digit(8);
                let more = rest.chars().take(2).take_while(|c| octal(*c)).count();
                let digits = format!("{code}{}", &rest[..more]);
                rest = &rest[more..];
                character(u32::from_str_radix(&digits, 8).ok())?
            }
            'x' | 'u' | 'U' => {
                let length = match code {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let digits = rest.get(..length).unwrap_or_default();
                let value = u32::from_str_radix(digits, 16).ok();
                rest = rest.get(length..).unwrap_or_default();
                character(value)?
            }
            'N' => return Err("names of characters (\\N) are not known".to_owned()),
            other => {
                out.push('\\');
                other
            }
        };
        out.push(plain);
    }
    out.push_str(rest);
    Ok(out)
}

fn character(code: Option<u32>) -> Result<char, String> {
    let found = code.and_then(char::from_u32);
    found.ok_or_else(|| "an escape that is no character".to_owned())
}
