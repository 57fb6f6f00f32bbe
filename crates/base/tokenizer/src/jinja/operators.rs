//! Python's operators.

use std::cmp::Ordering;

use super::ast::{Comparison, Operator};
use super::error::Error;
use super::escape::escaped;
use super::format::percent;
use super::machine::Machine;
use super::output::Steps;
use super::value::Value;

fn overflow() -> Error {
    Error::failed("an integer is too large")
}

fn divided_by_zero(what: &str) -> Error {
    Error::failed(format!("{what} by zero"))
}

impl Operator {
    fn sign(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Sub => "-",
            Self::Mul => "*",
            Self::Div => "/",
            Self::FloorDiv => "//",
            Self::Mod => "%",
            Self::Pow => "** or pow()",
        }
    }
}

impl Machine {
    pub(super) fn operate(
        &self,
        operator: Operator,
        left: &Value,
        right: &Value,
    ) -> Result<Value, Error> {
        if operator == Operator::Mod && left.as_str().is_some() {
            return self.printed(left, right);
        }
        let (left, right) = (left.defined()?, right.defined()?);
        if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
            return integers(operator, a, b);
        }
        if let (Some(a), Some(b)) = (left.as_float(), right.as_float()) {
            return floats(operator, a, b);
        }
        let found = match operator {
            Operator::Add => self.joined(left, right)?,
            Operator::Mul => self.repeated(left, right)?,
            _ => None,
        };
        found.ok_or_else(|| {
            Error::failed(format!(
                "unsupported operand type(s) for {}: '{}' and '{}'",
                operator.sign(),
                left.kind(),
                right.kind()
            ))
        })
    }

    /// `text % values`
    fn printed(&self, format: &Value, values: &Value) -> Result<Value, Error> {
        let format = format.as_str().unwrap_or_default();
        self.charge(format.len())?;
        percent(format, values, &self.steps).map(Value::str)
    }

    fn joined(&self, left: &Value, right: &Value) -> Result<Option<Value>, Error> {
        if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
            self.charge(a.len() + b.len())?;
            let plain = |value: &Value| matches!(value, Value::Str(_));
            return Ok(Some(if plain(left) && plain(right) {
                Value::str([a, b].concat())
            } else {
                let [left, right] = [left, right].map(|side| escaped(side, &self.steps));
                Value::Markup([left?, right?].concat().into())
            }));
        }
        Ok(match (left, right) {
            (Value::List(a), Value::List(b)) => {
                let (a, b) = (a.values(), b.values());
                self.charge_values(a.len() + b.len())?;
                Some(Value::list([&a[..], &b[..]].concat())?)
            }
            (Value::Tuple(a), Value::Tuple(b)) => {
                self.charge_values(a.values.len() + b.values.len())?;
                Some(Value::tuple([&a.values[..], &b.values[..]].concat())?)
            }
            _ => None,
        })
    }

    fn repeated(&self, left: &Value, right: &Value) -> Result<Option<Value>, Error> {
        let (value, times) = match (left.as_int(), right.as_int()) {
            (None, Some(times)) => (left, times),
            (Some(times), None) => (right, times),
            _ => return Ok(None),
        };
        let times = usize::try_from(times.clamp(0, 1 << 40)).unwrap_or(0);
        let many = |values: &[Value]| {
            self.charge_values(values.len().saturating_mul(times))?;
            let count = values.len() * times;
            Ok(values.iter().cycle().take(count).cloned().collect())
        };
        Ok(Some(match value {
            Value::Str(text) | Value::Markup(text) => {
                self.charge(text.len().saturating_mul(times))?;
                let repeated = text.repeat(times).into();
                match value {
                    Value::Markup(_) => Value::Markup(repeated),
                    _ => Value::Str(repeated),
                }
            }
            Value::List(list) => Value::list(many(&list.values())?)?,
            Value::Tuple(items) => Value::tuple(many(&items.values)?)?,
            _ => return Ok(None),
        }))
    }

    pub(super) fn compare(
        &self,
        comparison: Comparison,
        left: &Value,
        right: &Value,
    ) -> Result<bool, Error> {
        self.charge_values(1)?;
        Ok(match comparison {
            Comparison::Equal => left.equals(right, &self.steps)?,
            Comparison::NotEqual => !left.equals(right, &self.steps)?,
            Comparison::In => self.contains(right, left)?,
            Comparison::NotIn => !self.contains(right, left)?,
            Comparison::Less => left
                .compared(right, "<", &self.steps)?
                .is_some_and(Ordering::is_lt),
            Comparison::LessEqual => left
                .compared(right, "<=", &self.steps)?
                .is_some_and(Ordering::is_le),
            Comparison::Greater => left
                .compared(right, ">", &self.steps)?
                .is_some_and(Ordering::is_gt),
            Comparison::GreaterEqual => left
                .compared(right, ">=", &self.steps)?
                .is_some_and(Ordering::is_ge),
        })
    }

    /// `item in container`
    pub(super) fn contains(&self, container: &Value, item: &Value) -> Result<bool, Error> {
        match container {
            Value::Str(text) | Value::Markup(text) => {
                let Some(part) = item.defined()?.as_str() else {
                    return Err(Error::failed(format!(
                        "'in <string>' requires string as left operand, not {}",
                        item.kind()
                    )));
                };
                self.charge(text.len())?;
                Ok(text.contains(part))
            }
            Value::Dict(dict) => Ok(self.looked_up(dict, item)?.is_some()),
            Value::Int(_) | Value::Float(_) | Value::Bool(_) | Value::None => {
                let kind = container.kind();
                Err(Error::failed(format!(
                    "argument of type '{kind}' is not iterable"
                )))
            }
            other => {
                let values = self.values(other)?;
                self.charge_values(values.len())?;
                item.is_among(&values, &self.steps)
            }
        }
    }
}

fn integers(operator: Operator, a: i128, b: i128) -> Result<Value, Error> {
    let whole = match operator {
        Operator::Add => a.checked_add(b),
        Operator::Sub => a.checked_sub(b),
        Operator::Mul => a.checked_mul(b),
        Operator::Div if b == 0 => return Err(divided_by_zero("division")),
        Operator::Div => return Ok(Value::Float(a as f64 / b as f64)),
        Operator::FloorDiv | Operator::Mod if b == 0 => {
            return Err(divided_by_zero("integer division or modulo"));
        }
        Operator::FloorDiv => {
            let quotient = a.checked_div(b).ok_or_else(overflow)?;
            let down = a % b != 0 && (a < 0) != (b < 0);
            Some(quotient - i128::from(down))
        }
        Operator::Mod => {
            let rest = a.checked_rem(b).ok_or_else(overflow)?;
            Some(if rest != 0 && (rest < 0) != (b < 0) {
                rest + b
            } else {
                rest
            })
        }
        Operator::Pow if b < 0 => {
            if a == 0 {
                return Err(Error::failed("zero to a negative power"));
            }
            return Ok(Value::Float((a as f64).powf(b as f64)));
        }
        Operator::Pow => match u32::try_from(b) {
            Ok(power) => a.checked_pow(power),
            Err(_) if (-1..=1).contains(&a) => Some(if a == -1 && b % 2 == 0 { 1 } else { a }),
            Err(_) => None,
        },
    };
    whole.map(Value::Int).ok_or_else(overflow)
}

fn floats(operator: Operator, a: f64, b: f64) -> Result<Value, Error> {
    Ok(Value::Float(match operator {
        Operator::Add => a + b,
        Operator::Sub => a - b,
        Operator::Mul => a * b,
        Operator::Div if b == 0.0 => return Err(divided_by_zero("float division")),
        Operator::Div => a / b,
        Operator::FloorDiv | Operator::Mod if b == 0.0 => {
            return Err(divided_by_zero("float floor division or modulo"));
        }
        Operator::Mod => modulo(a, b),
        Operator::FloorDiv => floor_division(a, b),
        Operator::Pow => {
            if a == 0.0 && b < 0.0 {
                return Err(Error::failed("zero to a negative power"));
            }
            if a < 0.0 && b.fract() != 0.0 {
                return Err(Error::failed("complex numbers are not known"));
            }
            let power = a.powf(b);
            if power.is_infinite() && a.is_finite() && b.is_finite() {
                return Err(Error::failed("Result too large"));
            }
            power
        }
    }))
}

/// Remainder with the sign of the divisor.
fn modulo(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest == 0.0 {
        return 0.0_f64.copysign(b);
    }
    if (rest < 0.0) == (b < 0.0) {
        rest
    } else {
        rest + b
    }
}

fn floor_division(a: f64, b: f64) -> f64 {
    let rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest != 0.0 && (rest < 0.0) != (b < 0.0) {
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return 0.0_f64.copysign(a / b);
    }
    let floor = quotient.floor();
    if quotient - floor > 0.5 {
        floor + 1.0
    } else {
        floor
    }
}

impl Value {
    /// `self == other`. Charges a step per pair of values, because nested lists may share a list
    /// many times.
    pub(super) fn equals(&self, other: &Self, steps: &Steps) -> Result<bool, Error> {
        steps.take(1)?;
        if let (Some(a), Some(b)) = (self.as_int(), other.as_int()) {
            return Ok(a == b);
        }
        if let (Some(a), Some(b)) = (self.as_float(), other.as_float()) {
            return Ok(a == b);
        }
        if let (Some(a), Some(b)) = (self.as_str(), other.as_str()) {
            steps.charge(a.len().min(b.len()))?;
            return Ok(a == b);
        }
        let all = |a: &[Self], b: &[Self]| {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (a, b) in a.iter().zip(b) {
                if !a.equals(b, steps)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        match (self, other) {
            (Self::Undefined(_), Self::Undefined(_)) | (Self::None, Self::None) => Ok(true),
            (Self::List(a), Self::List(b)) => all(&a.values(), &b.values()),
            (Self::Tuple(a), Self::Tuple(b)) => all(&a.values, &b.values),
            (Self::Dict(a), Self::Dict(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    let found = b.get(key).ok().flatten();
                    let Some(found) = found else {
                        return Ok(false);
                    };
                    if !found.equals(value, steps)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (Self::Range(a), Self::Range(b)) => Ok(a.len == b.len
                && (a.len == 0 || a.start == b.start && (a.len == 1 || a.step == b.step))),
            (Self::View(a, x), Self::View(b, y)) => {
                if a != b || x.entries.len() != y.entries.len() {
                    return Ok(false);
                }
                steps.charge_values(2 * x.entries.len())?;
                let (x, y) = (x.view(*a)?, y.view(*b)?);
                for x in &x {
                    if !x.is_among(&y, steps)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            _ => Ok(self.is_same(other)),
        }
    }

    /// Whether any of `values` equals `self`.
    pub(super) fn is_among(&self, values: &[Self], steps: &Steps) -> Result<bool, Error> {
        for value in values {
            if value.equals(self, steps)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// `self is other`
    pub(super) fn is_same(&self, other: &Self) -> bool {
        use std::rc::Rc;
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::None, Self::None) => true,
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a == b,
            (Self::Str(a), Self::Str(b)) => a == b,
            (Self::List(a), Self::List(b)) => Rc::ptr_eq(a, b),
            (Self::Tuple(a), Self::Tuple(b)) => Rc::ptr_eq(a, b),
            (Self::Dict(a), Self::Dict(b)) => Rc::ptr_eq(a, b),
            (Self::Namespace(a), Self::Namespace(b)) => Rc::ptr_eq(a, b),
            (Self::Macro(a), Self::Macro(b)) | (Self::Loop(a), Self::Loop(b)) => a.is_same(b),
            (Self::Iterator(a), Self::Iterator(b)) => Rc::ptr_eq(a, b),
            (Self::Function(a), Self::Function(b)) => a == b,
            _ => false,
        }
    }

    /// The order of two values; `None` with NaN. Charges a step per compared pair.
    pub(super) fn compared(
        &self,
        other: &Self,
        sign: &str,
        steps: &Steps,
    ) -> Result<Option<Ordering>, Error> {
        steps.take(1)?;
        let (a, b) = (self.defined()?, other.defined()?);
        if let (Some(a), Some(b)) = (a.as_int(), b.as_int()) {
            return Ok(Some(a.cmp(&b)));
        }
        if let (Some(a), Some(b)) = (a.as_float(), b.as_float()) {
            return Ok(a.partial_cmp(&b));
        }
        if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
            steps.charge(a.len().min(b.len()))?;
            return Ok(Some(a.cmp(b)));
        }
        let each = |a: &[Self], b: &[Self]| {
            for (a, b) in a.iter().zip(b) {
                if !a.equals(b, steps)? {
                    return a.compared(b, sign, steps);
                }
            }
            Ok(Some(a.len().cmp(&b.len())))
        };
        match (a, b) {
            (Self::List(a), Self::List(b)) => each(&a.values(), &b.values()),
            (Self::Tuple(a), Self::Tuple(b)) => each(&a.values, &b.values),
            _ => Err(Error::failed(format!(
                "'{sign}' not supported between instances of '{}' and '{}'",
                a.kind(),
                b.kind()
            ))),
        }
    }
}
