//! Macros and their calls.

use std::rc::Rc;
use std::sync::Arc;

use super::ast::Macro;
use super::error::Error;
use super::functions::Args;
use super::machine::{Machine, Scope};
use super::value::{Object, Value};

/// A macro and its enclosing scope.
struct MacroValue {
    definition: Arc<Macro>,
    scope: Rc<Scope>,
}

impl Machine {
    pub(super) fn macro_value(&self, definition: &Arc<Macro>, scope: &Rc<Scope>) -> Value {
        let value = MacroValue {
            definition: definition.clone(),
            scope: scope.clone(),
        };
        Value::Macro(Object::new(Rc::new(value), &definition.name, 0))
    }

    pub(super) fn call_macro(&self, object: &Object, args: Args) -> Result<Value, Error> {
        let value = object.get::<MacroValue>()?;
        let Macro {
            name,
            parameters,
            defaults,
            body,
            reads,
        } = &*value.definition;
        let scope = Scope::within(&value.scope);
        let Args {
            mut positional,
            mut named,
        } = args;
        let more = positional.split_off(parameters.len().min(positional.len()));
        let given = positional.len();
        for (parameter, value) in parameters.iter().zip(positional) {
            scope.set(parameter, value);
        }
        let without = parameters.len() - defaults.len();
        for (at, parameter) in parameters.iter().enumerate().skip(given) {
            let passed = named.iter().position(|(name, _)| name == parameter);
            let value = match (passed, at.checked_sub(without)) {
                (Some(passed), _) => named.remove(passed).1,
                (None, Some(default)) => self.evaluate(&defaults[default], &scope)?,
                (None, None) => {
                    Value::undefined(format!("parameter '{parameter}' was not provided"))
                }
            };
            scope.set(parameter, value);
        }
        if reads.caller {
            let passed = named.iter().position(|(name, _)| &**name == "caller");
            let caller = match passed {
                Some(passed) => named.remove(passed).1,
                None => Value::undefined("No caller defined"),
            };
            scope.set(&"caller".into(), caller);
        }
        if reads.kwargs {
            let entries = named
                .drain(..)
                .map(|(name, value)| (Value::Str(name), value));
            scope.set(&"kwargs".into(), Value::dict(entries)?);
        } else if let Some((wrong, _)) = named.first() {
            let message = format!("macro '{name}' takes no keyword argument '{wrong}'");
            return Err(Error::failed(message));
        }
        if reads.varargs {
            scope.set(&"varargs".into(), Value::tuple(more)?);
        } else if !more.is_empty() {
            let count = parameters.len();
            let message = format!("macro '{name}' takes not more than {count} argument(s)");
            return Err(Error::failed(message));
        }
        let text = self.called(|| self.text_of(body, &scope))?;
        Ok(Value::str(text))
    }
}
