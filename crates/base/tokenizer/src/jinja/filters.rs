//! Filters of a single value: text, numbers and JSON.

use super::error::Error;
use super::escape::{escaped, escaped_text, url_quote, without_tags};
use super::format::{cut, percent};
use super::functions::{Args, flag};
use super::machine::Machine;
use super::methods::{capitalized, lines, strip};
use super::names::is_filter_of_one;
use super::output::Output;
use super::text::is_space;
use super::value::{Value, View};
use super::{attributes, filters_of_lists, json};

impl Machine {
    /// `value | name(args)`
    pub(super) fn filter(&self, name: &str, value: Value, args: Args) -> Result<Value, Error> {
        apply(self, name, value, args)
    }
}

fn apply(machine: &Machine, name: &str, value: Value, args: Args) -> Result<Value, Error> {
    machine.step()?;
    if let Value::Str(text) | Value::Markup(text) = &value {
        machine.charge(text.len())?;
    }
    if !is_filter_of_one(name) {
        return filters_of_lists::apply(machine, name, value, args);
    }
    match name {
        "format" => {
            let values = match args.named.is_empty() {
                true => Value::tuple(args.positional)?,
                false => {
                    let named = args.named.into_iter();
                    Value::dict(named.map(|(name, value)| (Value::Str(name), value)))?
                }
            };
            let format = value.text(&machine.steps)?;
            percent(&format, &values, &machine.steps).map(Value::str)
        }
        "default" | "d" => {
            let [default, boolean] = args.bind(name, ["default_value", "boolean"])?;
            let missing = value.is_undefined() || flag(boolean) && !value.is_true();
            Ok(match missing {
                true => default.unwrap_or_else(|| Value::str("")),
                false => value,
            })
        }
        "tojson" => {
            let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
            let options = args.bind(name, names)?;
            json::dumps(value.defined()?, options, &machine.steps).map(Value::str)
        }
        "abs" | "float" | "int" | "round" | "filesizeformat" => number(machine, name, &value, args),
        "attr" => {
            let [attribute] = args.bind(name, ["name"])?;
            let attribute =
                attribute.map_or_else(|| Ok("".into()), |name| name.text(&machine.steps))?;
            let found = attributes::of(machine, value.defined()?, &attribute)?;
            Ok(found.unwrap_or_else(|| {
                let kind = value.kind();
                Value::undefined(format!("'{kind} object' has no attribute '{attribute}'"))
            }))
        }
        "items" => {
            no_args(name, args)?;
            Value::generator(match &value {
                Value::Undefined(_) => Vec::new(),
                Value::Dict(dict) => machine.values(&Value::View(View::Items, dict.clone()))?,
                _ => return Err(Error::failed("Can only get item pairs from a mapping.")),
            })
        }
        "list" => {
            no_args(name, args)?;
            Value::list(machine.values(&value)?)
        }
        "count" | "length" => {
            no_args(name, args)?;
            match value.len() {
                Some(len) => Ok(Value::Int(len as i128)),
                None => {
                    let kind = value.kind();
                    Err(Error::failed(format!(
                        "object of type '{kind}' has no len()"
                    )))
                }
            }
        }
        _ => text(machine, name, value, args),
    }
}

fn no_args(name: &str, args: Args) -> Result<(), Error> {
    args.bind(name, []).map(|[]| ())
}

fn text(machine: &Machine, name: &str, value: Value, args: Args) -> Result<Value, Error> {
    let steps = &machine.steps;
    let text = value.text(steps)?;
    let kept = |changed: String| match &value {
        Value::Markup(_) => Value::Markup(changed.into()),
        _ => Value::str(changed),
    };
    Ok(match name {
        "trim" => {
            let [characters] = args.bind(name, ["chars"])?;
            let characters = match &characters {
                None | Some(Value::None) => None,
                Some(value) => Some(
                    value
                        .as_str()
                        .ok_or_else(|| Error::failed("strip arg must be None or str"))?,
                ),
            };
            kept(strip(&text, characters, true, true).to_owned())
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
            let (Some(old), Some(new)) = (old, new) else {
                return Err(Error::failed("replace takes what is replaced and by what"));
            };
            let count = count.and_then(|count| count.as_int()).unwrap_or(-1);
            machine.replaced(&text, &old.text(steps)?, &new.text(steps)?, count)?
        }
        "center" => {
            let [width] = args.bind(name, ["width"])?;
            let args = Args {
                positional: vec![width.unwrap_or(Value::Int(80))],
                named: Vec::new(),
            };
            machine.text_method(&text, "center", args)?
        }
        "indent" if value.as_str().is_none() => {
            let kind = value.kind();
            return Err(Error::failed(format!(
                "'{kind}' object has no attribute 'splitlines'"
            )));
        }
        "indent" => {
            let [width, first, blank] = args.bind(name, ["width", "first", "blank"])?;
            indented(machine, &text, width, flag(first), flag(blank))?
        }
        "truncate" => {
            let names = ["length", "killwords", "end", "leeway"];
            truncated(machine, value, args.bind(name, names)?)?
        }
        "urlencode" => {
            no_args(name, args)?;
            url_encoded(machine, &value)?
        }
        name => {
            no_args(name, args)?;
            match name {
                "upper" => kept(text.to_uppercase()),
                "lower" => kept(text.to_lowercase()),
                "capitalize" => kept(capitalized(&text)),
                "title" => Value::str(title(&text)),
                "string" => match value {
                    Value::Markup(text) => Value::Markup(text),
                    _ => Value::Str(text),
                },
                "safe" => Value::Markup(text),
                "escape" | "e" => Value::Markup(escaped(&value, steps)?),
                "forceescape" => Value::Markup(escaped_text(&text, steps)?),
                "striptags" => Value::str(without_tags(&text)),
                "wordcount" => {
                    let word = |c: char| c.is_alphanumeric() || c == '_';
                    let words = text.split(|c| !word(c)).filter(|part| !part.is_empty());
                    Value::Int(words.count() as i128)
                }
                other => return Err(Error::failed(format!("No filter named '{other}'."))),
            }
        }
    })
}

/// Capitalises words, which start after spaces, hyphens and opening brackets.
fn title(text: &str) -> String {
    let begins = |c: char| is_space(c) || "-({[<".contains(c);
    let mut out = String::new();
    let mut within = false;
    for c in text.chars() {
        if begins(c) {
            out.push(c);
            within = false;
        } else {
            match within {
                true => out.extend(c.to_lowercase()),
                false => out.extend(c.to_uppercase()),
            }
            within = true;
        }
    }
    out
}

fn indented(
    machine: &Machine,
    text: &str,
    width: Option<Value>,
    first: bool,
    blank: bool,
) -> Result<Value, Error> {
    let indent = match width {
        None => " ".repeat(4),
        Some(Value::Str(text) | Value::Markup(text)) => text.to_string(),
        Some(width) => match width.as_int() {
            Some(width) => {
                let width = usize::try_from(width.clamp(0, 1 << 40)).unwrap_or(0);
                machine.charge(width)?;
                " ".repeat(width)
            }
            None => return Err(Error::failed("indent takes a width")),
        },
    };
    let text = format!("{text}\n");
    let mut out = Output::new(&machine.steps);
    for (at, line) in lines(&text, false).enumerate() {
        if at > 0 {
            out.push('\n')?;
        }
        if (at > 0 && (blank || !line.is_empty())) || (at == 0 && first) {
            out.push_str(&indent)?;
        }
        out.push_str(line)?;
    }
    Ok(Value::str(out.into_text()))
}

fn truncated(machine: &Machine, value: Value, bound: [Option<Value>; 4]) -> Result<Value, Error> {
    let [length, kill_words, end, leeway] = bound;
    let whole = |value: Option<Value>, default: usize| match value {
        None | Some(Value::None) => Ok(default),
        Some(value) => match value.as_int().and_then(|value| usize::try_from(value).ok()) {
            Some(value) => Ok(value),
            None => Err(Error::failed(
                "truncate takes lengths that are not negative",
            )),
        },
    };
    let (length, leeway) = (whole(length, 255)?, whole(leeway, 5)?);
    let end = end.map_or_else(|| Ok("...".into()), |end| end.text(&machine.steps))?;
    machine.charge(end.len())?;
    let Some(kept) = length.checked_sub(end.chars().count()) else {
        let message = format!("expected length >= {}, got {length}", end.chars().count());
        return Err(Error::failed(message));
    };
    let Some(len) = value.len() else {
        let kind = value.kind();
        return Err(Error::failed(format!(
            "object of type '{kind}' has no len()"
        )));
    };
    if len <= length.saturating_add(leeway) {
        return Ok(value);
    }
    let Some(text) = value.as_str() else {
        return Err(Error::failed("truncate takes a text"));
    };
    let mut cut = cut(text, Some(kept));
    if !flag(kill_words)
        && let Some(at) = cut.rfind(' ')
    {
        cut = &cut[..at];
    }
    Ok(Value::str(cut.to_owned() + &end))
}

fn url_encoded(machine: &Machine, value: &Value) -> Result<Value, Error> {
    let steps = &machine.steps;
    let mut out = Output::new(steps);
    let pairs = match value {
        Value::Dict(dict) => machine.values(&Value::View(View::Items, dict.clone()))?,
        other
            if other.as_str().is_none() && other.len().is_some()
                || matches!(other, Value::Iterator(_)) =>
        {
            machine.values(other)?
        }
        other => {
            url_quote(&other.text(steps)?, false, &mut out)?;
            return Ok(Value::str(out.into_text()));
        }
    };
    for (at, pair) in pairs.iter().enumerate() {
        let pair: Result<[Value; 2], _> = machine.values(pair)?.try_into();
        let Ok([key, value]) = pair else {
            return Err(Error::failed("urlencode takes pairs"));
        };
        if at > 0 {
            out.push('&')?;
        }
        url_quote(&key.text(steps)?, true, &mut out)?;
        out.push('=')?;
        url_quote(&value.text(steps)?, true, &mut out)?;
    }
    Ok(Value::str(out.into_text()))
}

fn number(machine: &Machine, name: &str, value: &Value, args: Args) -> Result<Value, Error> {
    let value = value.defined()?;
    let not_a_number = || Error::failed(format!("'{name}' takes a number, not '{}'", value.kind()));
    match name {
        "abs" => {
            no_args(name, args)?;
            match (value, value.as_int()) {
                (Value::Float(number), _) => Ok(Value::Float(number.abs())),
                (_, Some(number)) => Ok(Value::Int(number.abs())),
                _ => Err(not_a_number()),
            }
        }
        "int" => {
            let [default, base] = args.bind(name, ["default", "base"])?;
            let base = base.and_then(|base| base.as_int()).unwrap_or(10);
            let found = match (value, value.as_str()) {
                (_, Some(text)) => read_int(text, base).or_else(|| {
                    let number = read_float(text)?;
                    number.is_finite().then_some(number as i128)
                }),
                (Value::Float(number), _) if number.is_finite() => Some(*number as i128),
                (other, _) => other.as_int(),
            };
            Ok(found.map_or_else(|| default.unwrap_or(Value::Int(0)), Value::Int))
        }
        "float" => {
            let [default] = args.bind(name, ["default"])?;
            let found = value.as_float().or_else(|| read_float(value.as_str()?));
            Ok(found.map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
        }
        "round" => rounded(machine, value, args),
        _ => {
            let [binary] = args.bind(name, ["binary"])?;
            let bytes = match value.as_str() {
                Some(text) => read_float(text),
                None => value.as_float(),
            };
            let bytes = bytes.ok_or_else(not_a_number)?;
            Ok(Value::str(file_size(bytes, flag(binary))))
        }
    }
}

fn rounded(machine: &Machine, value: &Value, args: Args) -> Result<Value, Error> {
    let [precision, method] = args.bind("round", ["precision", "method"])?;
    let Some(precision) = precision.map_or(Some(0), |precision| precision.as_int()) else {
        return Err(Error::failed("round takes a number of digits"));
    };
    let method =
        method.map_or_else(|| Ok("common".into()), |method| method.text(&machine.steps))?;
    let Some(number) = value.as_float() else {
        let kind = value.kind();
        return Err(Error::failed(format!(
            "type {kind} doesn't define __round__ method"
        )));
    };
    // Floats have no digits beyond these places.
    let places = precision.clamp(-400, 400) as i32;
    match &*method {
        "common" => match value.as_int() {
            Some(whole) if places >= 0 => Ok(Value::Int(whole)),
            Some(whole) => {
                let Some(unit) = 10_i128.checked_pow(places.unsigned_abs()) else {
                    return Ok(Value::Int(0));
                };
                let (down, rest) = (whole.div_euclid(unit), whole.rem_euclid(unit));
                let up = rest * 2 > unit || rest * 2 == unit && down % 2 != 0;
                Ok(Value::Int((down + i128::from(up)) * unit))
            }
            None if !number.is_finite() => Ok(Value::Float(number)),
            // The rounding unit would overflow to infinity.
            None if places < -308 => Ok(Value::Float(0.0_f64.copysign(number))),
            None if places < 0 => {
                let unit = 10_f64.powi(-places);
                Ok(Value::Float((number / unit).round_ties_even() * unit))
            }
            None => {
                let text = format!("{number:.*}", places as usize);
                Ok(Value::Float(text.parse().unwrap_or(number)))
            }
        },
        "ceil" | "floor" => {
            let unit = 10_f64.powi(places);
            if !unit.is_normal() {
                return Err(Error::failed("round has a precision out of range"));
            }
            let scaled = number * unit;
            let whole = if &*method == "ceil" {
                scaled.ceil()
            } else {
                scaled.floor()
            };
            Ok(Value::Float(whole / unit))
        }
        _ => Err(Error::failed("method must be common, ceil or floor")),
    }
}

/// `int(text, base)`
fn read_int(text: &str, base: i128) -> Option<i128> {
    let text = strip(text, None, true, true);
    let (sign, digits) = match text.strip_prefix(['-', '+']) {
        Some(digits) => (if text.starts_with('-') { -1 } else { 1 }, digits),
        None => (1, text),
    };
    let prefix = match digits.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 0,
    };
    let (base, digits) = match base {
        0 if prefix == 0 => (10, digits),
        base if prefix != 0 && (base == 0 || base == prefix) => (
            prefix,
            digits[2..].strip_prefix('_').unwrap_or(&digits[2..]),
        ),
        base => (base, digits),
    };
    let radix = u32::try_from(base)
        .ok()
        .filter(|base| (2..=36).contains(base))?;
    let underscores = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    if underscores || digits.starts_with(['-', '+']) {
        return None;
    }
    let value = i128::from_str_radix(&digits.replace('_', ""), radix).ok()?;
    Some(sign * value)
}

/// `float(text)`
fn read_float(text: &str) -> Option<f64> {
    let text = strip(text, None, true, true);
    let underscores = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    if underscores {
        return None;
    }
    text.replace('_', "").parse().ok()
}

fn file_size(bytes: f64, binary: bool) -> String {
    let base = if binary { 1024.0_f64 } else { 1000.0 };
    if bytes == 1.0 {
        return "1 Byte".to_owned();
    }
    if bytes < base {
        return format!("{} Bytes", bytes as i128);
    }
    let units = ["k", "M", "G", "T", "P", "E", "Z", "Y"];
    let mut unit = base;
    for (at, name) in units.iter().enumerate() {
        unit = base.powi(at as i32 + 2);
        if bytes < unit || at + 1 == units.len() {
            let name = match binary {
                true => format!("{}iB", name.to_uppercase()),
                false => format!("{name}B"),
            };
            return format!("{:.1} {name}", base * bytes / unit);
        }
    }
    format!("{unit}")
}
