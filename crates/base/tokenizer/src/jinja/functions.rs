//! Arguments of calls, and the global functions of templates.

use std::cell::Cell;
use std::rc::Rc;

use super::ast::Name;
use super::clock;
use super::error::Error;
use super::machine::Machine;
use super::names::Function;
use super::value::{Cycler, Dict, Range, Value};

/// Maximum range length in Jinja's sandbox.
const LONGEST_RANGE: usize = 100_000;

/// Whether an optional argument is given and truthy.
pub(super) fn flag(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

#[derive(Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Name, Value)>,
}

impl Args {
    pub(super) fn named(&self, name: &str) -> Option<&Value> {
        let mut named = self.named.iter();
        named.find(|(n, _)| &**n == name).map(|(_, value)| value)
    }

    /// Binds the arguments to the parameters `names`, in their order.
    pub(super) fn bind<const N: usize>(
        self,
        function: &str,
        names: [&str; N],
    ) -> Result<[Option<Value>; N], Error> {
        let count = self.positional.len();
        if count > N {
            let message = format!("{function}() takes at most {N} arguments ({count} given)");
            return Err(Error::failed(message));
        }
        let mut bound = [const { None }; N];
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            match names.iter().position(|n| **n == *name) {
                Some(at) if bound[at].is_none() => bound[at] = Some(value),
                Some(_) => {
                    let message = format!("{function}() got multiple values for '{name}'");
                    return Err(Error::failed(message));
                }
                None => {
                    let message =
                        format!("{function}() got an unexpected keyword argument '{name}'");
                    return Err(Error::failed(message));
                }
            }
        }
        Ok(bound)
    }
}

impl Machine {
    pub(super) fn call_function(&self, function: Function, args: Args) -> Result<Value, Error> {
        match function {
            Function::Range => self.range(args),
            Function::Dict => Ok(Value::Dict(Rc::new(self.dict_of(args)?))),
            Function::Namespace => {
                let Args { positional, named } = args;
                let named_only = Args {
                    positional,
                    named: Vec::new(),
                };
                let mut members = self.dict_of(named_only)?;
                for (name, value) in named {
                    members.put(Value::Str(name), value)?;
                }
                Ok(self.namespace(members))
            }
            Function::Cycler => {
                if args.positional.is_empty() {
                    return Err(Error::failed("at least one item has to be provided"));
                }
                Ok(Value::Cycler(Rc::new(Cycler {
                    depth: Value::depth(&args.positional)?,
                    values: args.positional,
                    at: Cell::new(0),
                })))
            }
            Function::Joiner => {
                let [sep] = args.bind("joiner", ["sep"])?;
                let sep = sep.map_or_else(|| Ok(", ".into()), |sep| sep.text(&self.steps))?;
                Ok(Value::Joiner(Rc::new((sep, Cell::new(false)))))
            }
            Function::RaiseException => {
                let [message] = args.bind("raise_exception", ["message"])?;
                let message = message.unwrap_or_else(|| Value::str(""));
                Err(Error::raised(&*message.text(&self.steps)?))
            }
            Function::StrftimeNow => {
                let [format] = args.bind("strftime_now", ["format"])?;
                match format.as_ref().and_then(Value::as_str) {
                    Some(format) => {
                        self.charge(format.len().saturating_mul(clock::LONGEST_FIELD))?;
                        Ok(Value::str(clock::strftime(format, self.now)))
                    }
                    None => Err(Error::failed("strftime_now() takes a format")),
                }
            }
        }
    }

    fn range(&self, args: Args) -> Result<Value, Error> {
        let bounds: Option<Vec<i128>> = args.positional.iter().map(Value::as_int).collect();
        let (start, stop, step) = match bounds.as_deref() {
            Some([stop]) => (0, *stop, 1),
            Some([start, stop]) => (*start, *stop, 1),
            Some([start, stop, step]) if *step != 0 => (*start, *stop, *step),
            Some([_, _, _]) => return Err(Error::failed("range() arg 3 must not be zero")),
            _ => return Err(Error::failed("range() takes one to three integers")),
        };
        let span = if step > 0 { stop - start } else { start - stop };
        let len = (span.max(0) + step.abs() - 1) / step.abs();
        match usize::try_from(len) {
            Ok(len) if len <= LONGEST_RANGE => Ok(Value::Range(Range { start, step, len })),
            _ => Err(Error::failed(format!(
                "Range too big. The sandbox blocks ranges larger than {LONGEST_RANGE}."
            ))),
        }
    }

    fn dict_of(&self, args: Args) -> Result<Dict, Error> {
        let mut dict = match args.positional.as_slice() {
            [] => Dict::default(),
            [Value::Dict(dict)] => {
                self.charge_values(dict.entries.len())?;
                (**dict).clone()
            }
            [Value::Namespace(members)] => {
                self.charge_values(members.borrow().entries.len())?;
                Dict::from_entries(members.borrow().entries.iter().cloned())?
            }
            [pairs] => {
                let mut dict = Dict::default();
                for pair in self.values(pairs)? {
                    let pair: Result<[Value; 2], _> = self.values(&pair)?.try_into();
                    let Ok([key, value]) = pair else {
                        let message = "dictionary update sequence elements must be pairs";
                        return Err(Error::failed(message));
                    };
                    self.charge_text(&key)?;
                    dict.insert(key, value)?;
                }
                dict
            }
            _ => return Err(Error::failed("dict expected at most 1 argument")),
        };
        for (name, value) in args.named {
            dict.insert(Value::Str(name), value)?;
        }
        Ok(dict)
    }
}
