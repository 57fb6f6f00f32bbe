//! Jinja's tests: `value is test`.

use super::ast::{Comparison, Operator};
use super::error::Error;
use super::functions::Args;
use super::machine::Machine;
use super::names::{is_filter, is_test};
use super::value::Value;

impl Machine {
    /// `value is name(args)`
    pub(super) fn test(&self, name: &str, value: &Value, args: Args) -> Result<bool, Error> {
        apply(self, name, value, args)
    }
}

fn apply(machine: &Machine, name: &str, value: &Value, args: Args) -> Result<bool, Error> {
    machine.step()?;
    let [other] = args.bind(name, ["other"])?;
    let compare = |comparison, other: &Option<Value>| match other {
        Some(other) => machine.compare(comparison, value, other),
        None => Err(Error::failed(format!("test '{name}' takes an argument"))),
    };
    let whole = || match value.defined()?.as_int() {
        Some(number) => Ok(number),
        None => Err(Error::failed(format!(
            "test '{name}' takes an integer, not {}",
            value.kind()
        ))),
    };
    Ok(match name {
        "boolean" => matches!(value, Value::Bool(_)),
        "callable" => is_callable(value),
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => value.as_str().is_some(),
        "escaped" => matches!(value, Value::Markup(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        // Texts need no `len`, which would count their characters.
        "sequence" | "iterable" if value.as_str().is_some() => true,
        "sequence" => value.len().is_some() && !matches!(value, Value::View(..)),
        "iterable" => value.len().is_some() || matches!(value, Value::Iterator(_) | Value::Loop(_)),
        "lower" | "upper" => {
            let text = value.text(&machine.steps)?;
            machine.charge(text.len())?;
            let cased = text.chars().any(|c| c.is_lowercase() || c.is_uppercase());
            let wrong = |c: char| {
                if name == "lower" {
                    c.is_uppercase()
                } else {
                    c.is_lowercase()
                }
            };
            cased && !text.chars().any(wrong)
        }
        "odd" | "even" => {
            let wanted = i128::from(name == "odd");
            match value {
                Value::Float(number) => number.rem_euclid(2.0) == wanted as f64,
                _ => whole()?.rem_euclid(2) == wanted,
            }
        }
        "divisibleby" => match &other {
            Some(other) => {
                let rest = machine.operate(Operator::Mod, value, other)?;
                rest.equals(&Value::Int(0), &machine.steps)?
            }
            None => return Err(Error::failed("divisibleby takes a number")),
        },
        "sameas" => {
            machine.charge_text(value)?;
            other.is_some_and(|other| value.is_same(&other))
        }
        "filter" => value.as_str().is_some_and(is_filter),
        "test" => value.as_str().is_some_and(is_known_or_sign),
        "in" => compare(Comparison::In, &other)?,
        "eq" | "equalto" | "==" => compare(Comparison::Equal, &other)?,
        "ne" | "!=" => compare(Comparison::NotEqual, &other)?,
        "lt" | "lessthan" | "<" => compare(Comparison::Less, &other)?,
        "le" | "<=" => compare(Comparison::LessEqual, &other)?,
        "gt" | "greaterthan" | ">" => compare(Comparison::Greater, &other)?,
        "ge" | ">=" => compare(Comparison::GreaterEqual, &other)?,
        other => return Err(Error::failed(format!("No test named '{other}'."))),
    })
}

fn is_known_or_sign(name: &str) -> bool {
    is_test(name) || ["==", "!=", "<", "<=", ">", ">="].contains(&name)
}

pub(super) fn is_callable(value: &Value) -> bool {
    matches!(
        value,
        // A call of an undefined value fails with the error of the missing name.
        Value::Undefined(_)
            | Value::Function(_)
            | Value::Macro(_)
            | Value::Method(..)
            | Value::Loop(_)
            | Value::Joiner(_)
    )
}
