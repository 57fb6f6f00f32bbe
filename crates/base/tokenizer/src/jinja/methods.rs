//! Methods of Python's strings.

use super::error::{Error, failed};
use super::functions::Args;
use super::machine::Machine;
use super::output::Output;
use super::text::{is_all, is_space, title, titled};
use super::value::Value;

/// A text argument.
fn text_of<'a>(value: Option<&'a Value>, method: &str) -> Result<&'a str, Error> {
    let text = value.and_then(Value::as_str);
    text.ok_or_else(|| Error::failed(format!("{method}() takes a str")))
}

fn int_of(value: Option<&Value>, default: i128) -> Result<i128, Error> {
    match value {
        None | Some(Value::None) => Ok(default),
        Some(value) => match value.as_int() {
            Some(number) => Ok(number),
            None => failed(format!(
                "'{}' object cannot be interpreted as an integer",
                value.kind()
            )),
        },
    }
}

/// The number of padding characters and the padding character.
fn filled(width: i128, fill: Option<&Value>, len: usize) -> Result<(usize, char), Error> {
    let missing = width.saturating_sub(len as i128).clamp(0, 1 << 40) as usize;
    let fill = match fill {
        None => ' ',
        Some(fill) => {
            let mut characters = fill.as_str().unwrap_or_default().chars();
            match (characters.next(), characters.next()) {
                (Some(fill), None) => fill,
                _ => return failed("The fill character must be exactly one character long"),
            }
        }
    };
    Ok((missing, fill))
}

pub(super) fn centered(text: &str, width: usize, missing: usize, fill: char) -> String {
    // As in Python, the extra character of an odd padding is on the left if the width is odd.
    let left = missing / 2 + (missing & width & 1);
    let fillings = |count: usize| std::iter::repeat_n(fill, count).collect::<String>();
    fillings(left) + text + &fillings(missing - left)
}

pub(super) fn capitalized(word: &str) -> String {
    let mut characters = word.chars();
    let Some(first) = characters.next() else {
        return String::new();
    };
    titled(first) + &characters.as_str().to_lowercase()
}

/// The substring between two character positions.
fn window<'t>(
    text: &'t str,
    start: Option<&Value>,
    end: Option<&Value>,
) -> Result<Window<'t>, Error> {
    let len = text.chars().count() as i128;
    let place = |at: i128| if at < 0 { (at + len).max(0) } else { at };
    let start = place(int_of(start, 0)?);
    let end = place(int_of(end, len)?).min(len);
    let byte = |at: i128| {
        let mut indices = text.char_indices();
        let found = indices.nth(at as usize);
        found.map_or(text.len(), |(at, _)| at)
    };
    if start > end {
        return Ok(Window {
            part: None,
            from: 0,
        });
    }
    let part = &text[byte(start)..byte(end)];
    let from = start as usize;
    Ok(Window {
        part: Some(part),
        from,
    })
}

struct Window<'t> {
    /// `None` if `start` is after `end`: then not even the empty text is found.
    part: Option<&'t str>,
    from: usize,
}

impl Machine {
    pub(super) fn text_method(&self, text: &str, name: &str, args: Args) -> Result<Value, Error> {
        self.charge(text.len())?;
        if name == "format" {
            return self.format(text, &args).map(Value::str);
        }
        let args = positional(name, args)?;
        let first = args.first();
        let value = match name {
            "upper" => Value::str(text.to_uppercase()),
            "lower" | "casefold" => Value::str(text.to_lowercase()),
            "capitalize" => Value::str(capitalized(text)),
            "title" => Value::str(title(text)),
            "swapcase" => Value::str(swapped(text)),
            "strip" | "lstrip" | "rstrip" => Value::str(stripped(text, name, first)?),
            "startswith" | "endswith" => self.starts(text, name, &args)?,
            "replace" => {
                let (old, new) = (text_of(first, name)?, text_of(args.get(1), name)?);
                let count = int_of(args.get(2), -1)?;
                self.replaced(text, old, new, count)?
            }
            "split" | "rsplit" => self.split(text, name == "rsplit", first, args.get(1))?,
            "splitlines" => {
                let keep = first.is_some_and(Value::is_true);
                self.pieces(lines(text, keep), false)?
            }
            "partition" | "rpartition" => {
                let separator = text_of(first, name)?;
                if separator.is_empty() {
                    return failed("empty separator");
                }
                let parts = match name {
                    "partition" => text.split_once(separator),
                    _ => text.rsplit_once(separator),
                };
                let parts = match parts {
                    Some((before, after)) => [before, separator, after],
                    None if name == "partition" => [text, "", ""],
                    None => ["", "", text],
                };
                Value::tuple(parts.map(Value::str).to_vec())?
            }
            "join" => {
                let Some(values) = first else {
                    return failed("join() takes exactly one argument");
                };
                let values = self.values(values)?;
                let mut out = Output::new(&self.steps);
                for (at, value) in values.iter().enumerate() {
                    let Some(part) = value.defined()?.as_str() else {
                        return failed(format!(
                            "sequence item {at}: expected str instance, {} found",
                            value.kind()
                        ));
                    };
                    if at > 0 {
                        out.push_str(text)?;
                    }
                    out.push_str(part)?;
                }
                Value::str(out.into_text())
            }
            "removeprefix" => {
                let prefix = text_of(first, name)?;
                Value::str(text.strip_prefix(prefix).unwrap_or(text))
            }
            "removesuffix" => {
                let suffix = text_of(first, name)?;
                Value::str(text.strip_suffix(suffix).unwrap_or(text))
            }
            "find" | "rfind" | "index" | "rindex" | "count" => searched(text, name, &args)?,
            "center" | "ljust" | "rjust" | "zfill" => self.aligned(text, name, &args)?,
            "expandtabs" => self.expanded(text, int_of(first, 8)?)?,
            "format_map" | "translate" => self.by_dict(text, name, first)?,
            _ => Value::Bool(is_all(text, name)),
        };
        Ok(value)
    }

    /// Methods with a dict argument.
    fn by_dict(&self, text: &str, name: &str, dict: Option<&Value>) -> Result<Value, Error> {
        let Some(Value::Dict(dict)) = dict else {
            return failed(format!("{name}() takes a dict"));
        };
        if name == "format_map" {
            self.charge_values(dict.entries.len())?;
            let mut args = Args::default();
            for (key, value) in &dict.entries {
                if let Value::Str(key) | Value::Markup(key) = key {
                    args.named.push((key.clone(), value.clone()));
                }
            }
            return self.format(text, &args).map(Value::str);
        }
        let mut out = Output::new(&self.steps);
        for c in text.chars() {
            match dict.get(&Value::Int((c as u32).into()))? {
                None => out.push(c)?,
                Some(Value::None) => {}
                Some(Value::Int(code)) => {
                    if let Some(c) = u32::try_from(code).ok().and_then(char::from_u32) {
                        out.push(c)?;
                    }
                }
                Some(other) => other.write_text(&mut out)?,
            }
        }
        Ok(Value::str(out.into_text()))
    }

    fn starts(&self, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
        let window = window(text, args.get(1), args.get(2))?;
        let matches = |part: &str| match (window.part, name) {
            (None, _) => false,
            (Some(text), "startswith") => text.starts_with(part),
            (Some(text), _) => text.ends_with(part),
        };
        let found = match args.first() {
            Some(Value::Tuple(parts)) => {
                let mut found = false;
                for part in &parts.values {
                    let part = text_of(Some(part), name)?;
                    self.charge(part.len().min(text.len()))?;
                    found |= matches(part);
                }
                found
            }
            part => matches(text_of(part, name)?),
        };
        Ok(Value::Bool(found))
    }

    pub(super) fn replaced(
        &self,
        text: &str,
        old: &str,
        new: &str,
        count: i128,
    ) -> Result<Value, Error> {
        let times = text.matches(old).count();
        let times = usize::try_from(count).map_or(times, |count| count.min(times));
        self.charge(text.len() + times.saturating_mul(new.len()))?;
        Ok(Value::str(text.replacen(old, new, times)))
    }

    fn split(
        &self,
        text: &str,
        from_end: bool,
        separator: Option<&Value>,
        limit: Option<&Value>,
    ) -> Result<Value, Error> {
        let limit = int_of(limit, -1)?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let most = limit.saturating_add(1);
        match separator {
            None | Some(Value::None) => self.pieces(Words::new(text, from_end, limit), from_end),
            Some(separator) => match text_of(Some(separator), "split")? {
                "" => failed("empty separator"),
                separator if from_end => self.pieces(text.rsplitn(most, separator), true),
                separator => self.pieces(text.splitn(most, separator), false),
            },
        }
    }

    /// Collects the parts of a text. Steps for each part are charged before the next one is
    /// searched.
    fn pieces<'t>(
        &self,
        parts: impl Iterator<Item = &'t str>,
        from_end: bool,
    ) -> Result<Value, Error> {
        let mut values = Vec::new();
        for part in parts {
            self.charge(part.len() + size_of::<Value>())?;
            values.push(Value::str(part));
        }
        if from_end {
            values.reverse();
        }
        Value::list(values)
    }

    fn aligned(&self, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
        let len = text.chars().count();
        let Some(width) = args.first() else {
            return failed(format!("{name}() takes a width"));
        };
        let width = int_of(Some(width), 0)?;
        let (missing, fill) = filled(width, args.get(1).filter(|_| name != "zfill"), len)?;
        self.charge(missing.saturating_mul(fill.len_utf8()))?;
        let filling = || std::iter::repeat_n(fill, missing).collect::<String>();
        Ok(Value::str(match name {
            "ljust" => text.to_owned() + &filling(),
            "rjust" => filling() + text,
            "zfill" => {
                let zeros = "0".repeat(missing);
                match text.strip_prefix(['+', '-']) {
                    Some(digits) => format!("{}{zeros}{digits}", &text[..1]),
                    None => zeros + text,
                }
            }
            _ => centered(text, len + missing, missing, fill),
        }))
    }

    fn expanded(&self, text: &str, size: i128) -> Result<Value, Error> {
        let size = size.clamp(0, 1 << 40) as usize;
        let tabs = text.matches('\t').count();
        self.charge(tabs.saturating_mul(size))?;
        let (mut out, mut column) = (String::new(), 0);
        for c in text.chars() {
            match c {
                '\t' if size > 0 => {
                    let spaces = size - column % size;
                    out.extend(std::iter::repeat_n(' ', spaces));
                    column += spaces;
                }
                '\t' => {}
                other => {
                    out.push(other);
                    column = if matches!(other, '\n' | '\r') {
                        0
                    } else {
                        column + 1
                    };
                }
            }
        }
        Ok(Value::str(out))
    }
}

/// Arguments in positional order; some may be named.
fn positional(method: &str, args: Args) -> Result<Vec<Value>, Error> {
    if args.named.is_empty() {
        return Ok(args.positional);
    }
    let bound: Vec<Option<Value>> = match method {
        "split" | "rsplit" => args.bind(method, ["sep", "maxsplit"])?.to_vec(),
        "splitlines" => args.bind(method, ["keepends"])?.to_vec(),
        "expandtabs" => args.bind(method, ["tabsize"])?.to_vec(),
        _ => return failed(format!("str.{method}() takes no keyword arguments")),
    };
    Ok(bound
        .into_iter()
        .map(|value| value.unwrap_or(Value::None))
        .collect())
}

fn swapped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c.is_uppercase() {
            true => out.extend(c.to_lowercase()),
            false if c.is_lowercase() => out.extend(c.to_uppercase()),
            false => out.push(c),
        }
    }
    out
}

fn stripped<'t>(text: &'t str, name: &str, characters: Option<&Value>) -> Result<&'t str, Error> {
    let set = match characters {
        None | Some(Value::None) => None,
        characters => Some(text_of(characters, name)?),
    };
    Ok(strip(text, set, name != "rstrip", name != "lstrip"))
}

pub(super) fn strip<'t>(text: &'t str, set: Option<&str>, left: bool, right: bool) -> &'t str {
    let mut set: Option<Vec<char>> = set.map(|set| set.chars().collect());
    if let Some(set) = &mut set {
        set.sort_unstable();
    }
    let out = |c: char| match &set {
        Some(set) => set.binary_search(&c).is_ok(),
        None => is_space(c),
    };
    let text = if left {
        text.trim_start_matches(out)
    } else {
        text
    };
    if right {
        text.trim_end_matches(out)
    } else {
        text
    }
}

/// Iterator over the words of a text from one end; after `left` words it returns the rest
/// unchanged.
struct Words<'t> {
    rest: &'t str,
    from_end: bool,
    left: usize,
}

impl<'t> Words<'t> {
    fn new(text: &'t str, from_end: bool, limit: usize) -> Self {
        Self {
            rest: text,
            from_end,
            left: limit,
        }
    }
}

impl<'t> Iterator for Words<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        let rest = strip(self.rest, None, !self.from_end, self.from_end);
        if rest.is_empty() {
            return None;
        }
        let Some(left) = self.left.checked_sub(1) else {
            // Only the side from which words are taken is stripped.
            self.rest = "";
            return Some(rest);
        };
        self.left = left;
        let (word, other) = match self.from_end {
            true => {
                let at = rest.rfind(is_space);
                let at = at.map_or(0, |at| {
                    at + rest[at..].chars().next().map_or(1, char::len_utf8)
                });
                (&rest[at..], &rest[..at])
            }
            false => rest.split_at(rest.find(is_space).unwrap_or(rest.len())),
        };
        self.rest = other;
        Some(word)
    }
}

/// Lines of a text, with or without line breaks.
pub(super) fn lines(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> {
    let is_break = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(at) = rest.find(is_break) else {
            return Some(std::mem::take(&mut rest));
        };
        let length = match rest[at..].starts_with("\r\n") {
            true => 2,
            false => rest[at..].chars().next().map_or(1, char::len_utf8),
        };
        let line = &rest[..if keep_ends { at + length } else { at }];
        rest = &rest[at + length..];
        Some(line)
    })
}

fn searched(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let part = text_of(args.first(), name)?;
    let window = window(text, args.get(1), args.get(2))?;
    let inside = window.part.unwrap_or_default();
    if name == "count" {
        let count = window.part.map_or(0, |inside| inside.matches(part).count());
        return Ok(Value::Int(count as i128));
    }
    let byte = window.part.and_then(|inside| match name.starts_with('r') {
        true => inside.rfind(part),
        false => inside.find(part),
    });
    match byte {
        Some(byte) => {
            let at = window.from + inside[..byte].chars().count();
            Ok(Value::Int(at as i128))
        }
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => failed("substring not found"),
    }
}
