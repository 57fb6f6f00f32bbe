//! `text % values` and number formatting.

use std::sync::Arc;

use super::error::{Error, failed};
use super::output::{Output, Steps};
use super::text::python_float;
use super::value::Value;

/// Maximum width, and maximum precision of numbers.
const WIDEST: usize = 1 << 20;
/// Maximum digits after the decimal point of a float; further digits are zeros. Rust's own
/// formatting panics above `u16::MAX`.
const MOST_DIGITS: usize = 1100;

/// A parsed format specification.
#[derive(Default)]
struct Form {
    fill: Option<char>,
    /// `<`, `>`, `^` or `=`.
    align: Option<char>,
    /// `+`, `-` or a space.
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

/// `format % values`
pub(super) fn percent(format: &str, values: &Value, steps: &Steps) -> Result<String, Error> {
    let single;
    let positional: &[Value] = match values {
        Value::Tuple(items) => &items.values,
        other => {
            single = [other.clone()];
            &single
        }
    };
    let mut given = positional.iter();
    let mut named = false;
    let mut out = Output::new(steps);
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at])?;
        rest = &rest[at + 1..];
        let mut value = None;
        if let Some(inside) = rest.strip_prefix('(') {
            let Some((name, after)) = inside.split_once(')') else {
                return failed("incomplete format key");
            };
            let Value::Dict(dict) = values else {
                return failed("format requires a mapping");
            };
            let Some(found) = dict.named(name) else {
                return failed(format!("KeyError: '{name}'"));
            };
            (value, rest, named) = (Some(found.clone()), after, true);
        }
        let mut form = Form::default();
        while let Some(flag) = rest.chars().next().filter(|c| "-+ #0".contains(*c)) {
            match flag {
                '-' => form.align = Some('<'),
                '#' => form.alternate = true,
                '0' => form.zero = true,
                ' ' if form.sign == Some('+') => {}
                sign => form.sign = Some(sign),
            }
            rest = &rest[1..];
        }
        let mut next = || {
            let next = given.next().cloned();
            next.ok_or_else(|| Error::failed("not enough arguments for format string"))
        };
        let mut size = |rest: &mut &str| -> Result<Option<i128>, Error> {
            if let Some(after) = rest.strip_prefix('*') {
                *rest = after;
                let size = next()?.as_int();
                return size.map_or_else(|| failed("* wants int"), |size| Ok(Some(size)));
            }
            Ok(taken_number(rest).map(|number| number as i128))
        };
        let width = size(&mut rest)?.unwrap_or(0);
        if width < 0 {
            form.align = Some('<');
        }
        form.width = saturated(width.saturating_abs());
        if let Some(after) = rest.strip_prefix('.') {
            rest = after;
            let precision = size(&mut rest)?.unwrap_or(0);
            if precision > i128::from(i32::MAX) {
                return Err(Error::limit("a precision of a format is too large"));
            }
            form.precision = Some(saturated(precision));
        }
        rest = rest.trim_start_matches(['h', 'l', 'L']);
        let Some(kind) = rest.chars().next() else {
            return failed("incomplete format");
        };
        rest = &rest[kind.len_utf8()..];
        if kind == '%' {
            out.push('%')?;
            continue;
        }
        let value = match value {
            Some(value) => value,
            None => next()?,
        };
        out.push_str(&old_style(&value, kind, form, steps)?)?;
    }
    out.push_str(rest)?;
    let mapping = named
        || matches!(
            values,
            Value::Dict(_) | Value::List(_) | Value::Undefined(_) | Value::Range(_)
        );
    if !mapping && given.next().is_some() {
        return failed("not all arguments converted during string formatting");
    }
    Ok(out.into_text())
}

/// Parses the number at the start of the text; `usize::MAX` on overflow.
fn taken_number(rest: &mut &str) -> Option<usize> {
    let end = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, after) = rest.split_at(end);
    *rest = after;
    (end > 0).then(|| number.parse().unwrap_or(usize::MAX))
}

/// A size argument, saturated to 0 if negative.
fn saturated(size: i128) -> usize {
    usize::try_from(size.max(0)).unwrap_or(usize::MAX)
}

fn old_style(value: &Value, kind: char, mut form: Form, steps: &Steps) -> Result<String, Error> {
    let right = form.align.is_none();
    match kind {
        's' | 'r' | 'a' => {
            let text = match kind {
                's' => value.text(steps)?.to_string(),
                _ => value.repr(steps)?,
            };
            let text = cut(&text, form.precision).to_owned();
            form.align.get_or_insert('>');
            padded(text, &form, false)
        }
        'c' => {
            let text = match value.as_int() {
                Some(code) => u32::try_from(code).ok().and_then(char::from_u32),
                None => value.as_str().and_then(|text| text.chars().next()),
            };
            match text {
                Some(c) => padded(c.to_string(), &form, right),
                None => failed("%c requires an int or a unicode character"),
            }
        }
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let whole = match value {
                Value::Float(number) if !"xXo".contains(kind) => number.trunc() as i128,
                other => match other.as_int() {
                    Some(number) => number,
                    None => {
                        let needed = if "xXo".contains(kind) {
                            "an integer"
                        } else {
                            "a real number"
                        };
                        return failed(format!(
                            "%{kind} format: {needed} is required, not {}",
                            other.kind()
                        ));
                    }
                },
            };
            let kind = if "iu".contains(kind) { 'd' } else { kind };
            let digits = bounded(form.precision.take().unwrap_or(0))?;
            let text = whole_digits(whole.unsigned_abs(), kind);
            let text = "0".repeat(digits.saturating_sub(text.len())) + &text;
            let prefix = alternate_prefix(&form, kind);
            signed(whole < 0, prefix, text, &old_zero(form))
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let Some(number) = value.as_float() else {
                return failed(format!("must be real number, not {}", value.kind()));
            };
            let text = float_digits(number.abs(), kind, form.precision.unwrap_or(6), false)?;
            signed(number.is_sign_negative(), "", text, &old_zero(form))
        }
        other => failed(format!("unsupported format character '{other}'")),
    }
}

/// In percent formats, `-` overrides the flag `0`.
fn old_zero(mut form: Form) -> Form {
    form.zero &= form.align != Some('<');
    form
}

fn alternate_prefix(form: &Form, kind: char) -> &'static str {
    match kind {
        'x' if form.alternate => "0x",
        'X' if form.alternate => "0X",
        'o' if form.alternate => "0o",
        'b' if form.alternate => "0b",
        _ => "",
    }
}

fn whole_digits(value: u128, kind: char) -> String {
    match kind {
        'x' => format!("{value:x}"),
        'X' => format!("{value:X}"),
        'o' => format!("{value:o}"),
        'b' => format!("{value:b}"),
        _ => value.to_string(),
    }
}

/// Digits of a non-negative float.
fn float_digits(value: f64, kind: char, precision: usize, repr: bool) -> Result<String, Error> {
    let exact = bounded(precision)?.min(MOST_DIGITS);
    let zeros = "0".repeat(precision - exact);
    let text = if !value.is_finite() {
        python_float(value)
    } else {
        match kind.to_ascii_lowercase() {
            'f' => format!("{value:.exact$}") + &zeros,
            'e' => exponent(&format!("{value:.exact$e}"), &zeros),
            _ => general(value, exact.max(1), repr),
        }
    };
    Ok(match kind.is_ascii_uppercase() {
        true => text.to_ascii_uppercase(),
        false => text,
    })
}

/// Python's exponent format: a sign and at least two digits. `zeros` follow the mantissa's digits.
fn exponent(text: &str, zeros: &str) -> String {
    let (digits, power) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, power) = match power.strip_prefix('-') {
        Some(power) => ('-', power),
        None => ('+', power),
    };
    format!("{digits}{zeros}e{sign}{power:0>2}")
}

fn general(value: f64, precision: usize, keep_point: bool) -> String {
    let scientific = format!("{value:.*e}", precision - 1);
    let power: i32 = scientific
        .split_once('e')
        .and_then(|(_, power)| power.parse().ok())
        .unwrap_or(0);
    let stripped = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if power < -4 || power >= precision as i32 {
        let (digits, power) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        return exponent(&format!("{}e{power}", stripped(digits)), "");
    }
    let decimals = (precision as i32 - 1 - power).max(0) as usize;
    let text = stripped(&format!("{value:.decimals$}"));
    match keep_point && !text.contains('.') {
        true => text + ".0",
        false => text,
    }
}

fn signed(negative: bool, prefix: &str, digits: String, form: &Form) -> Result<String, Error> {
    let sign = match form.sign {
        _ if negative => "-",
        Some('+') => "+",
        Some(' ') => " ",
        _ => "",
    };
    let mut digits = digits;
    if let Some(mark) = form.grouping {
        digits = grouped(&digits, mark);
    }
    let head = format!("{sign}{prefix}");
    let inner = form.align == Some('=') || form.zero && form.align.is_none();
    if inner {
        let fill = form.fill.unwrap_or(if form.zero { '0' } else { ' ' });
        let missing = bounded(form.width)?.saturating_sub(head.len() + digits.chars().count());
        let filling: String = std::iter::repeat_n(fill, missing).collect();
        return Ok(head + &filling + &digits);
    }
    padded(head + &digits, form, true)
}

fn grouped(digits: &str, mark: char) -> String {
    let end = digits
        .find(|c: char| !c.is_ascii_hexdigit())
        .unwrap_or(digits.len());
    let mut out = String::new();
    for (at, c) in digits[..end].chars().enumerate() {
        if at > 0 && (end - at) % 3 == 0 {
            out.push(mark);
        }
        out.push(c);
    }
    out + &digits[end..]
}

fn bounded(size: usize) -> Result<usize, Error> {
    match size {
        0..=WIDEST => Ok(size),
        _ => Err(Error::limit(format!(
            "a width or precision of a format is above {WIDEST}"
        ))),
    }
}

fn padded(text: String, form: &Form, right: bool) -> Result<String, Error> {
    let missing = bounded(form.width)?.saturating_sub(text.chars().count());
    let fill = form.fill.unwrap_or(if form.zero && form.align.is_none() {
        '0'
    } else {
        ' '
    });
    let filling = |count: usize| std::iter::repeat_n(fill, count).collect::<String>();
    Ok(match form.align.unwrap_or(if right { '>' } else { '<' }) {
        '<' => text + &filling(missing),
        '^' => filling(missing / 2) + &text + &filling(missing - missing / 2),
        _ => filling(missing) + &text,
    })
}

/// Truncates a text to `characters`.
pub(super) fn cut(text: &str, characters: Option<usize>) -> &str {
    let end = characters.and_then(|count| text.char_indices().nth(count));
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

/// `format(value, spec)`
pub(super) fn formatted(value: &Value, spec: &str, steps: &Steps) -> Result<Arc<str>, Error> {
    if spec.is_empty() {
        return value.text(steps);
    }
    laid_out(value, spec).map(Arc::from)
}

fn laid_out(value: &Value, spec: &str) -> Result<String, Error> {
    let form = read_form(spec)?;
    let wrong = |kind: char| {
        failed(format!(
            "Unknown format code '{kind}' for object of type '{}'",
            value.kind()
        ))
    };
    match value {
        Value::Str(text) | Value::Markup(text) => match form.kind {
            None | Some('s') if form.sign.is_some() => {
                failed("Sign not allowed in string format specifier")
            }
            None | Some('s') if form.align == Some('=') => {
                failed("'=' alignment not allowed in string format specifier")
            }
            None | Some('s') => padded(cut(text, form.precision).to_owned(), &form, false),
            Some(kind) => wrong(kind),
        },
        Value::Int(_) | Value::Bool(_) | Value::Float(_) => {
            let whole = value.as_int();
            match (form.kind, whole) {
                (None, Some(number)) if matches!(value, Value::Bool(_)) => {
                    signed(false, "", number.to_string(), &form)
                }
                (None | Some('d' | 'x' | 'X' | 'o' | 'b' | 'n'), Some(number)) => {
                    if form.precision.is_some() {
                        return failed("Precision not allowed in integer format specifier");
                    }
                    let kind = form.kind.unwrap_or('d');
                    let digits = whole_digits(number.unsigned_abs(), kind);
                    signed(number < 0, alternate_prefix(&form, kind), digits, &form)
                }
                (Some('c'), Some(code)) => {
                    match u32::try_from(code).ok().and_then(char::from_u32) {
                        Some(c) => padded(c.to_string(), &form, true),
                        None => failed("%c arg not in range(0x110000)"),
                    }
                }
                (Some(kind @ ('d' | 'x' | 'X' | 'o' | 'b' | 'c' | 's')), _) => wrong(kind),
                (kind, _) => {
                    let number = value.as_float().unwrap_or_default();
                    let text = match kind {
                        Some('%') => {
                            let places = form.precision.unwrap_or(6);
                            float_digits(number.abs() * 100.0, 'f', places, false)? + "%"
                        }
                        Some(kind @ ('e' | 'E' | 'f' | 'F' | 'g' | 'G')) => {
                            float_digits(number.abs(), kind, form.precision.unwrap_or(6), false)?
                        }
                        None => match form.precision {
                            Some(places) => float_digits(number.abs(), 'g', places, true)?,
                            None => python_float(number.abs()),
                        },
                        Some(kind) => return wrong(kind),
                    };
                    signed(number.is_sign_negative(), "", text, &form)
                }
            }
        }
        other => failed(format!(
            "unsupported format string passed to {}.__format__",
            other.kind()
        )),
    }
}

fn read_form(spec: &str) -> Result<Form, Error> {
    let mut form = Form::default();
    let mut rest = spec;
    let is_align = |c: char| matches!(c, '<' | '>' | '^' | '=');
    let mut characters = rest.chars();
    match (characters.next(), characters.next()) {
        (Some(fill), Some(align)) if is_align(align) => {
            (form.fill, form.align) = (Some(fill), Some(align));
            rest = characters.as_str();
        }
        (Some(align), _) if is_align(align) => {
            form.align = Some(align);
            rest = &rest[1..];
        }
        _ => {}
    }
    let take = |rest: &mut &str, allowed: &str| {
        let found = rest.chars().next().filter(|c| allowed.contains(*c));
        *rest = &rest[usize::from(found.is_some())..];
        found
    };
    form.sign = take(&mut rest, "+- ");
    form.alternate = take(&mut rest, "#").is_some();
    form.zero = take(&mut rest, "0").is_some();
    form.width = taken_number(&mut rest).unwrap_or(0);
    form.grouping = take(&mut rest, ",_");
    if let Some(after) = rest.strip_prefix('.') {
        rest = after;
        let Some(precision) = taken_number(&mut rest) else {
            return failed("Format specifier missing precision");
        };
        form.precision = Some(precision);
    }
    form.kind = rest.chars().next();
    if rest.chars().count() > 1 {
        return failed("Invalid format specifier");
    }
    Ok(form)
}
