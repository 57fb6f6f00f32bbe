//! Evaluation of expressions.

use std::rc::Rc;

use super::ast::{Arguments, Expr};
use super::attributes;
use super::error::{Error, ErrorKind};
use super::functions::Args;
use super::machine::{Machine, Scope};
use super::names::Function;
use super::output::Output;
use super::value::{Dict, Range, Value, View};

impl Machine {
    /// The value of a variable.
    pub(super) fn variable(&self, name: &str, scope: &Rc<Scope>) -> Value {
        let found = scope.get(name);
        found
            .or_else(|| self.variables.get(name).cloned())
            .or_else(|| Function::named(name).map(Value::Function))
            .unwrap_or_else(|| Value::undefined(format!("'{name}' is undefined")))
    }

    pub(super) fn evaluate(&self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value, Error> {
        self.step()?;
        Ok(match expr {
            Expr::None => Value::None,
            Expr::Bool(value) => Value::Bool(*value),
            Expr::Int(value) => Value::Int(*value),
            Expr::Float(value) => Value::Float(*value),
            Expr::Str(text) => Value::Str(text.clone()),
            Expr::Name(name) => self.variable(name, scope),
            Expr::Tuple(items) => Value::tuple(self.all(items, scope)?)?,
            Expr::List(items) => Value::list(self.all(items, scope)?)?,
            Expr::Dict(items) => {
                let entry = |(key, value): &(Expr, Expr)| {
                    let key = self.evaluate(key, scope)?;
                    self.charge_text(&key)?;
                    Ok((key, self.evaluate(value, scope)?))
                };
                let entries: Result<Vec<_>, Error> = items.iter().map(entry).collect();
                Value::dict(entries?)?
            }
            Expr::Concat(parts) => {
                let mut out = Output::new(&self.steps);
                for part in parts {
                    self.evaluate(part, scope)?.write_text(&mut out)?;
                }
                Value::str(out.into_text())
            }
            Expr::And(parts) => self.first(parts, scope, |value| !value.is_true())?,
            Expr::Or(parts) => self.first(parts, scope, Value::is_true)?,
            Expr::Not(inner) => Value::Bool(!self.evaluate(inner, scope)?.is_true()),
            Expr::Negative(inner) => self.signed(&self.evaluate(inner, scope)?, true)?,
            Expr::Positive(inner) => self.signed(&self.evaluate(inner, scope)?, false)?,
            Expr::Chain(first, rest) => {
                let mut value = self.evaluate(first, scope)?;
                for (operator, operand) in rest {
                    let operand = self.evaluate(operand, scope)?;
                    value = self.operate(*operator, &value, &operand)?;
                }
                value
            }
            Expr::Compare(first, rest) => {
                let mut left = self.evaluate(first, scope)?;
                for (comparison, right) in rest {
                    let right = self.evaluate(right, scope)?;
                    if !self.compare(*comparison, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Value::Bool(true)
            }
            Expr::Condition(parts, otherwise) => {
                let [test, then] = &**parts;
                match (self.evaluate(test, scope)?.is_true(), otherwise) {
                    (true, _) => self.evaluate(then, scope)?,
                    (false, Some(otherwise)) => self.evaluate(otherwise, scope)?,
                    (false, None) => Value::undefined(
                        "the inline if-expression evaluated to false and no else section was \
                         defined.",
                    ),
                }
            }
            Expr::Attribute(value, name) => self.attribute(&self.evaluate(value, scope)?, name)?,
            Expr::Item(value, key) => {
                let value = self.evaluate(value, scope)?;
                self.item(&value, &self.evaluate(key, scope)?)?
            }
            Expr::Slice(bounds) => {
                let bound = |bound: &Option<Expr>| match bound {
                    Some(bound) => self.evaluate(bound, scope),
                    None => Ok(Value::None),
                };
                let [start, stop, step] = &**bounds;
                Value::Slice(Rc::new([bound(start)?, bound(stop)?, bound(step)?]))
            }
            Expr::Call(called, arguments) => {
                let called = self.evaluate(called, scope)?;
                let args = self.arguments(arguments, scope)?;
                self.call(&called, args)?
            }
            Expr::Filter(value, name, arguments) => {
                let Some(value) = value else {
                    return Err(Error::failed("a filter without a value"));
                };
                let value = self.evaluate(value, scope)?;
                let args = self.arguments(arguments, scope)?;
                self.filter(name, value, args)?
            }
            Expr::Test(value, name, arguments) => {
                let value = self.evaluate(value, scope)?;
                let args = self.arguments(arguments, scope)?;
                Value::Bool(self.test(name, &value, args)?)
            }
        })
    }

    fn all(&self, items: &[Expr], scope: &Rc<Scope>) -> Result<Vec<Value>, Error> {
        items
            .iter()
            .map(|item| self.evaluate(item, scope))
            .collect()
    }

    /// Evaluates parts up to the first value for which `decides` holds; returns the last value
    /// evaluated.
    fn first(
        &self,
        parts: &[Expr],
        scope: &Rc<Scope>,
        decides: impl Fn(&Value) -> bool,
    ) -> Result<Value, Error> {
        let mut value = Value::None;
        for part in parts {
            value = self.evaluate(part, scope)?;
            if decides(&value) {
                break;
            }
        }
        Ok(value)
    }

    fn signed(&self, value: &Value, negative: bool) -> Result<Value, Error> {
        let value = value.defined()?;
        let sign = if negative { -1 } else { 1 };
        match (value, value.as_int()) {
            (_, Some(number)) => match number.checked_mul(sign) {
                Some(number) => Ok(Value::Int(number)),
                None => Err(Error::failed("an integer is too large")),
            },
            (Value::Float(number), _) => Ok(Value::Float(if negative { -number } else { *number })),
            _ => Err(Error::failed(format!(
                "bad operand type for unary {}: '{}'",
                if negative { '-' } else { '+' },
                value.kind()
            ))),
        }
    }

    pub(super) fn arguments(
        &self,
        arguments: &Arguments,
        scope: &Rc<Scope>,
    ) -> Result<Args, Error> {
        let mut args = Args {
            positional: self.all(&arguments.positional, scope)?,
            named: Vec::new(),
        };
        if let Some(rest) = &arguments.rest {
            let rest = self.evaluate(rest, scope)?;
            args.positional.extend(self.values(&rest)?);
        }
        for (name, value) in &arguments.named {
            args.named
                .push((name.clone(), self.evaluate(value, scope)?));
        }
        if let Some(rest) = &arguments.named_rest {
            let Value::Dict(dict) = self.evaluate(rest, scope)? else {
                return Err(Error::failed("argument after ** must be a mapping"));
            };
            // A dict's keys are unique, so a duplicate can only be one of the earlier names.
            let written = args.named.len();
            self.charge_values(dict.entries.len().saturating_mul(1 + written))?;
            for (key, value) in &dict.entries {
                let (Value::Str(name) | Value::Markup(name)) = key else {
                    return Err(Error::failed("keywords must be strings"));
                };
                if args.named[..written].iter().any(|(other, _)| other == name) {
                    let message = format!("got multiple values for keyword argument '{name}'");
                    return Err(Error::failed(message));
                }
                args.named.push((name.clone(), value.clone()));
            }
        }
        Ok(args)
    }

    /// Applies the filters of a filter block to its text.
    pub(super) fn filtered_block(
        &self,
        filter: &Expr,
        text: Value,
        scope: &Rc<Scope>,
    ) -> Result<Value, Error> {
        self.step()?;
        let Expr::Filter(inner, name, arguments) = filter else {
            return Ok(text);
        };
        let value = match inner {
            Some(inner) => self.filtered_block(inner, text, scope)?,
            None => text,
        };
        self.filter(name, value, self.arguments(arguments, scope)?)
    }

    /// Executes the call of a `call` block.
    pub(super) fn call_block(
        &self,
        call: &Expr,
        caller: Value,
        scope: &Rc<Scope>,
    ) -> Result<Value, Error> {
        let Expr::Call(called, arguments) = call else {
            return Err(Error::failed("expected a call"));
        };
        let called = self.evaluate(called, scope)?;
        let mut args = self.arguments(arguments, scope)?;
        args.named.push(("caller".into(), caller));
        self.call(&called, args)
    }

    pub(super) fn call(&self, called: &Value, args: Args) -> Result<Value, Error> {
        self.step()?;
        match called.defined()? {
            Value::Function(function) => self.call_function(*function, args),
            Value::Macro(definition) => self.call_macro(definition, args),
            Value::Method(method, _) => self.call_method(&method.0, &method.1, args),
            Value::Loop(current) => self.call_loop(current, args),
            Value::Joiner(joiner) => {
                let used = joiner.1.replace(true);
                Ok(Value::Str(if used { joiner.0.clone() } else { "".into() }))
            }
            other => Err(Error::failed(format!(
                "'{}' object is not callable",
                other.kind()
            ))),
        }
    }

    /// `list(value)`
    pub(super) fn values(&self, value: &Value) -> Result<Vec<Value>, Error> {
        match value {
            // `len` below counts the characters of a text, so the steps for that are charged first.
            Value::Str(text) | Value::Markup(text) => self.charge_values(text.len())?,
            // Each pair is a separate container.
            Value::View(View::Items, dict) => self.charge_values(4 * dict.entries.len())?,
            _ => {}
        }
        self.charge_values(value.len().unwrap_or(0))?;
        Ok(match value {
            Value::Undefined(_) => Vec::new(),
            Value::Str(text) | Value::Markup(text) => {
                let mut buffer = [0; 4];
                let characters = text.chars();
                characters
                    .map(|c| Value::str(&*c.encode_utf8(&mut buffer)))
                    .collect()
            }
            Value::List(list) => list.values().clone(),
            Value::Tuple(items) => items.values.clone(),
            Value::Dict(dict) => dict.view(View::Keys)?,
            Value::View(view, dict) => dict.view(*view)?,
            Value::Range(range) => range.values(),
            Value::Iterator(values) => {
                let values = values.rest();
                self.charge_values(values.len())?;
                values
            }
            Value::Loop(current) => self.rest_of(current)?,
            other => {
                let kind = other.kind();
                return Err(Error::failed(format!("'{kind}' object is not iterable")));
            }
        })
    }

    /// `dict.get(key)`; charges steps for the length of a text key.
    pub(super) fn looked_up(&self, dict: &Dict, key: &Value) -> Result<Option<Value>, Error> {
        self.charge_text(key)?;
        dict.get(key)
    }

    /// `value[key]`
    pub(super) fn item(&self, value: &Value, key: &Value) -> Result<Value, Error> {
        let value = value.defined()?;
        if let Value::Slice(bounds) = key {
            return self.slice(value, bounds);
        }
        let index = |len: usize| {
            let at = key.as_int()?;
            let at = if at < 0 { at + len as i128 } else { at };
            usize::try_from(at).ok().filter(|&at| at < len)
        };
        let found = match value {
            Value::List(list) => index(list.values().len()).map(|at| list.values()[at].clone()),
            Value::Tuple(items) => index(items.values.len()).map(|at| items.values[at].clone()),
            Value::Range(range) => index(range.len).map(|at| Value::Int(range.item(at))),
            Value::Str(text) | Value::Markup(text) => {
                self.charge(text.len())?;
                let len = value.len().unwrap_or(0);
                let found = index(len).and_then(|at| text.chars().nth(at));
                found.map(|c| Value::str(c.to_string()))
            }
            Value::Dict(dict) => match self.looked_up(dict, key) {
                Err(error) if error.kind != ErrorKind::Limit => None,
                found => found?,
            },
            _ => None,
        };
        if let Some(found) = found {
            return Ok(found);
        }
        let method = key
            .as_str()
            .and_then(|name| attributes::of(self, value, name).transpose());
        method.unwrap_or_else(|| self.missing(value, key))
    }

    /// `value.name`
    pub(super) fn attribute(&self, value: &Value, name: &str) -> Result<Value, Error> {
        let value = value.defined()?;
        if let Some(found) = attributes::of(self, value, name)? {
            return Ok(found);
        }
        if let Value::Dict(dict) = value
            && let Some(found) = dict.named(name)
        {
            return Ok(found.clone());
        }
        self.missing(value, &Value::str(name))
    }

    /// A slice of a sequence.
    fn slice(&self, value: &Value, bounds: &[Value; 3]) -> Result<Value, Error> {
        let whole = |bound: &Value| match bound {
            Value::None => Ok(None),
            other => match other.as_int() {
                Some(bound) => Ok(Some(bound)),
                None => Err(Error::failed(
                    "slice indices must be integers or None or have an __index__ method",
                )),
            },
        };
        let sliced = matches!(
            value,
            Value::List(_) | Value::Tuple(_) | Value::Str(_) | Value::Markup(_) | Value::Range(_)
        );
        let Some(len) = value.len().filter(|_| sliced) else {
            let kind = value.kind();
            return Err(Error::failed(format!(
                "'{kind}' object is not subscriptable"
            )));
        };
        let (start, stop) = (whole(&bounds[0])?, whole(&bounds[1])?);
        let step = whole(&bounds[2])?.unwrap_or(1);
        if step == 0 {
            return Err(Error::failed("slice step cannot be zero"));
        }
        let len = len as i128;
        let (low, high) = if step < 0 { (-1, len - 1) } else { (0, len) };
        let bound = |bound: Option<i128>, other: i128| match bound {
            None => other,
            Some(at) if at < 0 => (at + len).max(low),
            Some(at) => at.min(high),
        };
        let (first, last) = if step < 0 { (high, low) } else { (low, high) };
        let (start, stop) = (bound(start, first), bound(stop, last));
        let span = if step < 0 { start - stop } else { stop - start };
        let count = (span.max(0) + step.abs() - 1) / step.abs();
        let range = Range {
            start,
            step,
            len: usize::try_from(count).unwrap_or(0),
        };
        let at = |index: usize| usize::try_from(range.item(index)).unwrap_or(0);
        let pick = |values: &[Value]| (0..range.len).map(|i| values[at(i)].clone()).collect();
        self.charge_values(range.len)?;
        Ok(match value {
            Value::List(list) => Value::list(pick(&list.values()))?,
            Value::Tuple(items) => Value::tuple(pick(&items.values))?,
            Value::Range(outer) => Value::Range(Range {
                start: outer.start + range.start * outer.step,
                step: outer.step * step,
                len: range.len,
            }),
            text => {
                let source = text.as_str().unwrap_or_default();
                self.charge(source.len())?;
                let stride = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
                let characters = source.chars();
                let part: String = if range.len == 0 {
                    String::new()
                } else if step == 1 && source.is_ascii() {
                    source[at(0)..at(0) + range.len].to_owned()
                } else if step > 0 {
                    let characters = characters.skip(at(0)).step_by(stride);
                    characters.take(range.len).collect()
                } else {
                    let characters = characters.rev().skip(len as usize - 1 - at(0));
                    characters.step_by(stride).take(range.len).collect()
                };
                match text {
                    Value::Markup(_) => Value::Markup(part.into()),
                    _ => Value::str(part),
                }
            }
        })
    }

    /// The undefined value of a missing attribute or item, with Jinja's message.
    fn missing(&self, value: &Value, key: &Value) -> Result<Value, Error> {
        let owner = match value {
            Value::None => "None".to_owned(),
            other => format!("{} object", other.kind()),
        };
        let quoted = match key.repr(&self.steps) {
            Err(error) if error.kind != ErrorKind::Limit => String::new(),
            quoted => quoted?,
        };
        Ok(Value::undefined(match key.as_str() {
            Some(_) => format!("'{owner}' has no attribute {quoted}"),
            None => format!("{owner} has no element {quoted}"),
        }))
    }
}
