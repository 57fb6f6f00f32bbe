//! Filters of sequences.

use std::cmp::Ordering;

use super::ast::Operator;
use super::error::Error;
use super::functions::{Args, flag};
use super::machine::Machine;
use super::output::Output;
use super::sort;
use super::value::{Key, Value, View};

pub(super) fn apply(
    machine: &Machine,
    name: &str,
    value: Value,
    args: Args,
) -> Result<Value, Error> {
    match name {
        "first" => {
            let [] = args.bind(name, [])?;
            let first = match &value {
                Value::Iterator(values) => values.next(),
                other => machine.values(other)?.into_iter().next(),
            };
            Ok(first.unwrap_or_else(|| Value::undefined("No first item, sequence was empty.")))
        }
        "last" => {
            let [] = args.bind(name, [])?;
            if value.len().is_none() {
                let kind = value.kind();
                return Err(Error::failed(format!("'{kind}' object is not reversible")));
            }
            let last = machine.values(&value)?.pop();
            Ok(last.unwrap_or_else(|| Value::undefined("No last item, sequence was empty.")))
        }
        "join" => joined(machine, &value, args),
        "sum" => summed(machine, &value, args),
        "reverse" => {
            let [] = args.bind(name, [])?;
            if let Some(text) = value.as_str() {
                return Ok(Value::str(text.chars().rev().collect::<String>()));
            }
            let mut values = machine.values(&value)?;
            values.reverse();
            match value {
                Value::Iterator(_) => Value::list(values),
                _ => Value::generator(values),
            }
        }
        "map" => mapped(machine, &value, args),
        "select" | "reject" | "selectattr" | "rejectattr" => selected(machine, name, &value, args),
        "sort" => {
            let names = ["reverse", "case_sensitive", "attribute"];
            let [reverse, case, attribute] = args.bind(name, names)?;
            let paths = Path::several(machine, attribute)?;
            let case = flag(case);
            let key = |value: &Value| -> Result<Value, Error> {
                let parts = paths.iter().map(|path| path.of(machine, value, case, None));
                Value::list(parts.collect::<Result<_, _>>()?)
            };
            Value::list(sorted(
                machine,
                machine.values(&value)?,
                key,
                flag(reverse),
            )?)
        }
        "dictsort" => sorted_entries(machine, &value, args),
        "unique" => {
            let [case, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
            let (path, case) = (Path::new(machine, attribute)?, flag(case));
            let mut seen: std::collections::HashSet<Key> = Default::default();
            let mut kept = Vec::new();
            for value in machine.values(&value)? {
                let key = path.of(machine, &value, case, None)?;
                machine.charge_text(&key)?;
                if seen.insert(key.key()?) {
                    kept.push(value);
                }
            }
            Value::generator(kept)
        }
        "min" | "max" => extreme(machine, name, &value, args),
        "groupby" => grouped(machine, &value, args),
        "batch" | "slice" => parted(machine, name, &value, args),
        other => Err(Error::failed(format!("No filter named '{other}'."))),
    }
}

fn sorted_entries(machine: &Machine, value: &Value, args: Args) -> Result<Value, Error> {
    let [case, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    let Value::Dict(dict) = value.defined()? else {
        return Err(Error::failed("dictsort takes a mapping"));
    };
    let at = match by.map(|by| by.text(&machine.steps)).transpose()?.as_deref() {
        None | Some("key") => 0,
        Some("value") => 1,
        _ => {
            let message = "You can only sort by either \"key\" or \"value\"";
            return Err(Error::failed(message));
        }
    };
    let case = flag(case);
    let key = |pair: &Value| -> Result<Value, Error> {
        folded(machine, machine.item(pair, &Value::Int(at))?, case)
    };
    let entries = machine.values(&Value::View(View::Items, dict.clone()))?;
    Value::list(sorted(machine, entries, key, flag(reverse))?)
}

fn extreme(machine: &Machine, name: &str, value: &Value, args: Args) -> Result<Value, Error> {
    let [case, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
    let (path, case) = (Path::new(machine, attribute)?, flag(case));
    let (wanted, sign) = match name {
        "min" => (Ordering::Less, "<"),
        _ => (Ordering::Greater, ">"),
    };
    let mut best: Option<(Value, Value)> = None;
    for value in machine.values(value)? {
        let key = path.of(machine, &value, case, None)?;
        let better = match &best {
            Some((best, _)) => key.compared(best, sign, &machine.steps)? == Some(wanted),
            None => true,
        };
        if better {
            best = Some((key, value));
        }
    }
    Ok(best.map_or_else(
        || Value::undefined("No aggregated item, sequence was empty."),
        |(_, value)| value,
    ))
}

/// `value`, in lower case if it is text and not `case_sensitive`.
fn folded(machine: &Machine, value: Value, case_sensitive: bool) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) if !case_sensitive => {
            machine.charge(text.len())?;
            Ok(Value::str(text.to_lowercase()))
        }
        _ => Ok(value),
    }
}

/// An attribute path, from a dotted name.
struct Path(Vec<Value>);

impl Path {
    fn new(machine: &Machine, attribute: Option<Value>) -> Result<Self, Error> {
        match attribute {
            None | Some(Value::None) => Ok(Self(Vec::new())),
            Some(value) => match value.as_str() {
                Some(text) => Self::parse(machine, text),
                None => Ok(Self(vec![value])),
            },
        }
    }

    fn parse(machine: &Machine, text: &str) -> Result<Self, Error> {
        let parts = text.split('.').map(|part| {
            machine.charge(part.len() + size_of::<Value>())?;
            Ok(match part.parse() {
                Ok(index) if part.bytes().all(|b| b.is_ascii_digit()) => Value::Int(index),
                _ => Value::str(part),
            })
        });
        parts.collect::<Result<_, _>>().map(Self)
    }

    /// Comma-separated paths.
    fn several(machine: &Machine, attribute: Option<Value>) -> Result<Vec<Self>, Error> {
        match attribute.as_ref().and_then(Value::as_str) {
            Some(text) => text
                .split(',')
                .map(|part| Self::parse(machine, part))
                .collect(),
            None => Ok(vec![Self::new(machine, attribute)?]),
        }
    }

    fn of(
        &self,
        machine: &Machine,
        value: &Value,
        case_sensitive: bool,
        default: Option<&Value>,
    ) -> Result<Value, Error> {
        let mut value = value.clone();
        machine.charge_values(self.0.len())?;
        for part in &self.0 {
            value = machine.item(&value, part)?;
            if value.is_undefined()
                && let Some(default) = default
            {
                value = default.clone();
            }
        }
        folded(machine, value, case_sensitive)
    }
}

fn sorted(
    machine: &Machine,
    values: Vec<Value>,
    key: impl Fn(&Value) -> Result<Value, Error>,
    reverse: bool,
) -> Result<Vec<Value>, Error> {
    let count = values.len();
    machine.charge_values(count.saturating_mul(count.checked_ilog2().unwrap_or(0) as usize))?;
    let mut keyed = Vec::with_capacity(count);
    for value in values {
        keyed.push((key(&value)?, value));
    }
    let keyed = sort::sorted(keyed, &mut |(a, _), (b, _)| {
        let (a, b) = if reverse { (b, a) } else { (a, b) };
        Ok(a.compared(b, "<", &machine.steps)? == Some(Ordering::Less))
    })?;
    Ok(keyed.into_iter().map(|(_, value)| value).collect())
}

fn joined(machine: &Machine, value: &Value, args: Args) -> Result<Value, Error> {
    let [separator, attribute] = args.bind("join", ["d", "attribute"])?;
    let separator =
        separator.map_or_else(|| Ok("".into()), |separator| separator.text(&machine.steps))?;
    let path = Path::new(machine, attribute)?;
    let mut out = Output::new(&machine.steps);
    for (at, value) in machine.values(value)?.iter().enumerate() {
        if at > 0 {
            out.push_str(&separator)?;
        }
        path.of(machine, value, true, None)?.write_text(&mut out)?;
    }
    Ok(Value::str(out.into_text()))
}

fn summed(machine: &Machine, value: &Value, args: Args) -> Result<Value, Error> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"])?;
    let path = Path::new(machine, attribute)?;
    let mut sum = start.unwrap_or(Value::Int(0));
    if sum.as_str().is_some() {
        return Err(Error::failed(
            "sum() can't sum strings [use ''.join(seq) instead]",
        ));
    }
    for value in machine.values(value)? {
        let value = path.of(machine, &value, true, None)?;
        sum = machine.operate(Operator::Add, &sum, &value)?;
    }
    Ok(sum)
}

/// The values; an empty list for a falsy value.
fn some(machine: &Machine, value: &Value) -> Result<Vec<Value>, Error> {
    match value.is_true() {
        true => machine.values(value),
        false => Ok(Vec::new()),
    }
}

fn mapped(machine: &Machine, value: &Value, mut args: Args) -> Result<Value, Error> {
    let mut out = Vec::new();
    if args.positional.is_empty() && args.named("attribute").is_some() {
        let [attribute, default] = args.bind("map", ["attribute", "default"])?;
        let path = Path::new(machine, attribute)?;
        for value in some(machine, value)? {
            out.push(path.of(machine, &value, true, default.as_ref())?);
        }
        return Value::generator(out);
    }
    if args.positional.is_empty() {
        return Err(Error::failed("map requires a filter argument"));
    }
    let name = args.positional.remove(0).text(&machine.steps)?;
    for value in some(machine, value)? {
        machine.charge_values(args.positional.len() + args.named.len())?;
        let args = Args {
            positional: args.positional.clone(),
            named: args.named.clone(),
        };
        out.push(machine.filter(&name, value, args)?);
    }
    Value::generator(out)
}

fn selected(machine: &Machine, name: &str, value: &Value, args: Args) -> Result<Value, Error> {
    let wanted = name.starts_with("select");
    let Args {
        mut positional,
        named,
    } = args;
    let path = match name.ends_with("attr") {
        true if positional.is_empty() => {
            return Err(Error::failed("Missing parameter for attribute name"));
        }
        true => Path::new(machine, Some(positional.remove(0)))?,
        false => Path(Vec::new()),
    };
    let test = match positional.is_empty() {
        true => None,
        false => Some(positional.remove(0).text(&machine.steps)?),
    };
    let mut kept = Vec::new();
    for value in some(machine, value)? {
        let tested = path.of(machine, &value, true, None)?;
        let holds = match &test {
            None => tested.is_true(),
            Some(test) => {
                machine.charge_values(positional.len() + named.len())?;
                let args = Args {
                    positional: positional.clone(),
                    named: named.clone(),
                };
                machine.test(test, &tested, args)?
            }
        };
        if holds == wanted {
            kept.push(value);
        }
    }
    Value::generator(kept)
}

fn grouped(machine: &Machine, value: &Value, args: Args) -> Result<Value, Error> {
    let names = ["attribute", "default", "case_sensitive"];
    let [attribute, default, case] = args.bind("groupby", names)?;
    let (path, case) = (Path::new(machine, attribute)?, flag(case));
    let key = |value: &Value| path.of(machine, value, case, default.as_ref());
    let values = sorted(machine, machine.values(value)?, key, false)?;
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for value in values {
        let own = key(&value)?;
        match groups.last_mut() {
            Some((key, values)) if key.equals(&own, &machine.steps)? => values.push(value),
            _ => groups.push((own, vec![value])),
        }
    }
    let mut out = Vec::new();
    for (mut key, values) in groups {
        if !case && let Some(first) = values.first() {
            key = path.of(machine, first, true, default.as_ref())?;
        }
        out.push(Value::group(key, values)?);
    }
    Value::list(out)
}

fn parted(machine: &Machine, name: &str, value: &Value, args: Args) -> Result<Value, Error> {
    let [count, fill] = match name {
        "batch" => args.bind(name, ["linecount", "fill_with"])?,
        _ => args.bind(name, ["slices", "fill_with"])?,
    };
    let count = count.and_then(|count| usize::try_from(count.as_int()?).ok());
    let Some(count) = count.filter(|count| *count > 0) else {
        return Err(Error::failed(format!("{name} takes a number above 0")));
    };
    let fill = fill.filter(|fill| !matches!(fill, Value::None));
    let values = machine.values(value)?;
    // Each part is a separate container.
    let parts = match name {
        "batch" => values.len().div_ceil(count),
        _ => count,
    };
    machine.charge_values(count.saturating_add(parts.saturating_mul(4)))?;
    let mut parts = Vec::new();
    if name == "batch" {
        for part in values.chunks(count) {
            let mut part = part.to_vec();
            if let Some(fill) = &fill {
                part.resize(count, fill.clone());
            }
            parts.push(Value::list(part)?);
        }
        return Value::generator(parts);
    }
    let (each, longer) = (values.len() / count, values.len() % count);
    let mut values = values.into_iter();
    for at in 0..count {
        let own = each + usize::from(at < longer);
        let mut part: Vec<Value> = values.by_ref().take(own).collect();
        if let Some(fill) = fill.as_ref().filter(|_| at >= longer) {
            part.push(fill.clone());
        }
        parts.push(Value::list(part)?);
    }
    Value::generator(parts)
}
