//! Attributes of values: Python's methods and the members of Jinja's own objects.

use super::error::Error;
use super::functions::Args;
use super::machine::Machine;
use super::value::{Value, View};

const OF_TEXT: [&str; 45] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
/// Jinja's sandbox forbids mutation of lists, but Kimi-K2's template uses `append` and `pop`.
const OF_LISTS: [&str; 8] = [
    "append", "clear", "copy", "count", "extend", "index", "insert", "pop",
];
const OF_DICTS: [&str; 5] = ["copy", "get", "items", "keys", "values"];
const UNSAFE_OF_LISTS: [&str; 3] = ["remove", "reverse", "sort"];
const UNSAFE_OF_DICTS: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// The attribute `name` of a value, if it exists.
pub(super) fn of(machine: &Machine, value: &Value, name: &str) -> Result<Option<Value>, Error> {
    let is_method = match value {
        Value::Str(_) | Value::Markup(_) => OF_TEXT.contains(&name),
        Value::List(_) => OF_LISTS.contains(&name),
        Value::Tuple(pair) if pair.is_group && matches!(name, "grouper" | "list") => {
            return Ok(pair.values.get(usize::from(name == "list")).cloned());
        }
        Value::Tuple(_) | Value::Range(_) => matches!(name, "count" | "index"),
        Value::Dict(_) => OF_DICTS.contains(&name),
        Value::Int(_) | Value::Bool(_) => match name {
            "real" | "numerator" => return Ok(value.as_int().map(Value::Int)),
            "imag" => return Ok(Some(Value::Int(0))),
            "denominator" => return Ok(Some(Value::Int(1))),
            _ => matches!(name, "bit_length" | "bit_count" | "conjugate"),
        },
        Value::Float(_) => matches!(name, "is_integer" | "conjugate"),
        Value::Namespace(members) => return Ok(members.borrow().named(name).cloned()),
        Value::Loop(current) => return machine.loop_attribute(current, name),
        Value::Macro(object) if name == "name" => return Ok(Some(Value::Str(object.name.clone()))),
        Value::Cycler(cycler) => match name {
            "current" => {
                let at = cycler.at.get() % cycler.values.len();
                return Ok(Some(cycler.values[at].clone()));
            }
            _ => matches!(name, "next" | "reset"),
        },
        _ => false,
    };
    if is_method {
        return value.clone().method(name).map(Some);
    }
    let hidden = name.starts_with("__") && name.ends_with("__");
    let changes = match value {
        Value::List(_) => UNSAFE_OF_LISTS.contains(&name),
        Value::Dict(_) => UNSAFE_OF_DICTS.contains(&name),
        _ => false,
    };
    Ok((hidden || changes).then(|| {
        let kind = value.kind();
        Value::undefined(format!(
            "access to attribute '{name}' of '{kind}' object is unsafe."
        ))
    }))
}

impl Machine {
    pub(super) fn call_method(
        &self,
        value: &Value,
        name: &str,
        args: Args,
    ) -> Result<Value, Error> {
        match value {
            Value::Str(text) | Value::Markup(text) => self.text_method(text, name, args),
            Value::Dict(dict) => match name {
                "keys" => Ok(Value::View(View::Keys, dict.clone())),
                "values" => Ok(Value::View(View::Values, dict.clone())),
                "items" => Ok(Value::View(View::Items, dict.clone())),
                "copy" => Ok(value.clone()),
                _ => {
                    if !args.named.is_empty() {
                        return Err(Error::failed("dict.get() takes no keyword arguments"));
                    }
                    let [key, default] = args.bind("get", ["key", "default"])?;
                    let key =
                        key.ok_or_else(|| Error::failed("get expected at least 1 argument"))?;
                    Ok(self
                        .looked_up(dict, &key)?
                        .or(default)
                        .unwrap_or(Value::None))
                }
            },
            Value::List(_) | Value::Tuple(_) | Value::Range(_) => {
                self.sequence_method(value, name, args)
            }
            Value::Int(_) | Value::Bool(_) => {
                let number = value.as_int().unwrap_or_default();
                let bits = match name {
                    "conjugate" => return Ok(Value::Int(number)),
                    "bit_count" => number.unsigned_abs().count_ones(),
                    _ => 128 - number.unsigned_abs().leading_zeros(),
                };
                Ok(Value::Int(bits.into()))
            }
            Value::Float(number) => Ok(match name {
                "is_integer" => Value::Bool(number.fract() == 0.0),
                _ => value.clone(),
            }),
            Value::Loop(current) => self.loop_method(current, name, args),
            Value::Cycler(cycler) => {
                let at = cycler.at.get();
                if name == "reset" {
                    cycler.at.set(0);
                    return Ok(Value::None);
                }
                cycler.at.set((at + 1) % cycler.values.len());
                Ok(cycler.values[at].clone())
            }
            _ => Err(Error::failed("no such method")),
        }
    }

    fn sequence_method(&self, value: &Value, name: &str, args: Args) -> Result<Value, Error> {
        if !args.named.is_empty() {
            return Err(Error::failed("it takes no keyword arguments"));
        }
        let args = args.positional;
        if let (Value::List(list), true) = (value, !matches!(name, "count" | "index" | "copy")) {
            let added = match (name, args.as_slice()) {
                ("append", [value]) => vec![value.clone()],
                ("insert", [at, value]) if at.as_int().is_some() => vec![value.clone()],
                ("extend", [values]) => self.values(values)?,
                ("pop", [] | [_]) | ("clear", []) => Vec::new(),
                _ => return Err(Error::failed("wrong arguments of a method of lists")),
            };
            self.charge_values(added.len())?;
            // Shifting the values after the changed index costs steps.
            if matches!(name, "insert" | "pop") {
                self.charge(list.values().len())?;
            }
            return list.change(&added, |values| {
                let place = |at: Option<&Value>| {
                    let at = at.map_or(Some(-1), Value::as_int)?;
                    let at = if at < 0 {
                        at + values.len() as i128
                    } else {
                        at
                    };
                    Some(at)
                };
                let at = place(args.first());
                match name {
                    "clear" => values.clear(),
                    "insert" => {
                        let at = at.unwrap_or(0).clamp(0, values.len() as i128) as usize;
                        values.splice(at..at, added.iter().cloned());
                    }
                    "pop" => {
                        let at = at.and_then(|at| usize::try_from(at).ok());
                        let Some(at) = at.filter(|&at| at < values.len()) else {
                            return Err(Error::failed("pop index out of range"));
                        };
                        return Ok(values.remove(at));
                    }
                    _ => values.extend(added.iter().cloned()),
                }
                Ok(Value::None)
            });
        }
        let values = self.values(value)?;
        match (name, args.as_slice()) {
            ("copy", []) => Value::list(values),
            ("count", [item]) => {
                let mut count = 0;
                for value in &values {
                    count += i128::from(value.equals(item, &self.steps)?);
                }
                Ok(Value::Int(count))
            }
            ("index", [item, ..]) => {
                for (at, value) in values.iter().enumerate() {
                    if value.equals(item, &self.steps)? {
                        return Ok(Value::Int(at as i128));
                    }
                }
                Err(Error::failed("the value is not in the list"))
            }
            _ => Err(Error::failed("wrong arguments of a method of lists")),
        }
    }
}
