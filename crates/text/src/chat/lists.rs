//! Lists that templates change, as Python's: Kimi-K2's pairs results of tools with their calls by
//! `ids.append(id)` and `ids.pop(0)`.
//!
//! The interpreter's own lists do not change. Those that a template can mean to change are begun as
//! arguments of `namespace(...)` or by `{% set name = [] %}`; they become lists of this kind.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

/// Name of the function that gives an empty list; [`with_lists`] writes it.
const EMPTY: &str = "__empty_list()";
/// Nested containers that are looked through for lists that change.
const DEEPEST: usize = 100;

#[derive(Debug, Default)]
struct List {
    items: Mutex<Vec<Value>>,
}

impl List {
    fn of(items: Vec<Value>) -> Value {
        let items = Mutex::new(items);
        Value::from_object(Self { items })
    }

    fn items(&self) -> MutexGuard<'_, Vec<Value>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_usize()?;
        self.items().get(index).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items().clone())
    }

    fn call_method(
        self: &Arc<Self>,
        _: &State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        let mut items = self.items();
        match (method, args) {
            ("append", [value]) => items.push(unchanging(value, 0)?),
            ("extend", [values]) => {
                let values: Vec<Value> = values.try_iter()?.collect();
                let fixed = values.iter().map(|value| unchanging(value, 0));
                items.extend(fixed.collect::<Result<Vec<_>, _>>()?);
            }
            ("insert", [at, value]) => {
                let at = place(at, items.len())?.clamp(0, items.len() as i64);
                items.insert(at as usize, unchanging(value, 0)?);
            }
            ("pop", [] | [_]) => {
                let at = place(args.first().unwrap_or(&Value::from(-1)), items.len())?;
                let found = usize::try_from(at).ok().filter(|&at| at < items.len());
                let Some(at) = found else {
                    return Err(invalid("pop from a list that has no such item"));
                };
                return Ok(items.remove(at));
            }
            ("clear", []) => items.clear(),
            _ => return Err(Error::from(ErrorKind::UnknownMethod)),
        }
        Ok(Value::from(()))
    }
}

/// An index of Python's, which counts from the end if it is negative.
fn place(index: &Value, len: usize) -> Result<i64, Error> {
    let index = i64::try_from(index.clone())?;
    Ok(if index < 0 { index + len as i64 } else { index })
}

fn invalid(problem: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

/// The value, which holds no list that changes: one could hold itself.
fn unchanging(value: &Value, depth: usize) -> Result<Value, Error> {
    if depth > DEEPEST || value.downcast_object_ref::<List>().is_some() {
        return Err(invalid("a list that changes cannot be an item of another"));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                unchanging(&item, depth + 1)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                unchanging(&value.get_item(&key)?, depth + 1)?;
            }
        }
        _ => {}
    }
    Ok(value.clone())
}

/// Adds the functions to an interpreter that has its own `namespace`.
pub(super) fn add(environment: &mut Environment<'static>) {
    let own = environment.globals().find(|(name, _)| *name == "namespace");
    let Some(own) = own.map(|(_, function)| function) else {
        return;
    };
    let name = EMPTY.trim_end_matches("()");
    environment.add_function(name, || List::of(Vec::new()));
    let namespace = move |state: &State<'_, '_>, kwargs: Kwargs| -> Result<Value, Error> {
        let changing = |value: Value| -> Result<Value, Error> {
            let is_list = value.kind() == ValueKind::Seq;
            Ok(if is_list {
                List::of(value.try_iter()?.collect())
            } else {
                value
            })
        };
        let all = kwargs
            .args()
            .map(|key| Ok((key, changing(kwargs.get(key)?)?)));
        let all: Kwargs = all
            .collect::<Result<Vec<_>, Error>>()?
            .into_iter()
            .collect();
        own.call(state, &[Value::from(all)])
    };
    environment.add_function("namespace", namespace);
}

/// Where a tag sets a name to the empty list, the name is set to one that can be changed.
pub(super) fn with_lists(tag: &str) -> Option<String> {
    let (before, after) = tag.split_once('=')?;
    let mut words = before.trim_start_matches(['-', '+']).split_whitespace();
    let sets = words.next() == Some("set") && words.next().is_some() && words.next().is_none();
    let value = after.trim_end_matches(['-', '+']);
    let inside = value.trim().strip_prefix('[')?.strip_suffix(']')?;
    let empty = sets && inside.trim().is_empty();
    empty.then(|| format!("{before}= {EMPTY} {}", &after[value.len()..]))
}
