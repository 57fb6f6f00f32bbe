//! Template values, with Python's types.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::error::Error;
use super::names::Function;

/// Maximum nesting of containers. Deeper values are refused, so that printing, comparing and
/// dropping a value needs little stack.
const DEEPEST: u16 = 200;

#[derive(Clone)]
pub(super) enum Value {
    /// A missing value, with the message of the error that its use raises.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    /// Text that `escape` does not change.
    Markup(Arc<str>),
    List(Rc<List>),
    Tuple(Rc<Items>),
    Dict(Rc<Dict>),
    /// `dict.keys()` and similar views.
    View(View, Rc<Dict>),
    Range(Range),
    /// Bounds of a slice in a subscript.
    Slice(Rc<[Value; 3]>),
    Iterator(Rc<Generator>),
    Namespace(Rc<RefCell<Dict>>),
    Macro(Object),
    Loop(Object),
    /// A method of a value.
    Method(Rc<(Value, Arc<str>)>, u16),
    Function(Function),
    Cycler(Rc<Cycler>),
    Joiner(Rc<(Arc<str>, Cell<bool>)>),
}

/// A value that is opaque outside its module: a macro or a loop.
#[derive(Clone)]
pub(super) struct Object {
    inner: Rc<dyn Any>,
    pub(super) name: Arc<str>,
    depth: u16,
}

impl Object {
    pub(super) fn new<T: 'static>(inner: Rc<T>, name: &Arc<str>, depth: u16) -> Self {
        let name = name.clone();
        Self { inner, name, depth }
    }

    /// # Errors
    /// Never fails: each kind of value has objects of one type.
    pub(super) fn get<T: 'static>(&self) -> Result<Rc<T>, Error> {
        let found = self.inner.clone().downcast();
        found.map_err(|_| Error::failed("an object of another kind"))
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }

    /// Whether the template holds a reference besides this one and the statement's.
    pub(super) fn is_shared(&self) -> bool {
        Rc::strong_count(&self.inner) > 2
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    Keys,
    Values,
    Items,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: i128,
    pub(super) step: i128,
    pub(super) len: usize,
}

impl Range {
    pub(super) fn item(self, index: usize) -> i128 {
        self.start + index as i128 * self.step
    }

    pub(super) fn values(self) -> Vec<Value> {
        (0..self.len).map(|at| Value::Int(self.item(at))).collect()
    }
}

pub(super) struct Items {
    pub(super) values: Vec<Value>,
    depth: u16,
    /// A pair from `groupby`, whose items have names.
    pub(super) is_group: bool,
}

pub(super) struct List {
    values: RefCell<Vec<Value>>,
    depth: Cell<u16>,
    /// Whether a container holds the list. Such a list is immutable, so no list contains itself.
    contained: Cell<bool>,
}

impl List {
    pub(super) fn values(&self) -> std::cell::Ref<'_, Vec<Value>> {
        self.values.borrow()
    }

    /// Changes the values. The lists among the new values `added` become immutable.
    pub(super) fn change<T>(
        &self,
        added: &[Value],
        change: impl FnOnce(&mut Vec<Value>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let depth = depth_of(added)?;
        if self.contained.get() {
            let message = "a list that is an item of another value cannot be changed";
            return Err(Error::failed(message));
        }
        self.depth.set(self.depth.get().max(depth));
        change(&mut self.values.borrow_mut())
    }
}

/// The result of filters such as `map`; its values can be iterated once.
pub(super) struct Generator {
    values: RefCell<std::vec::IntoIter<Value>>,
    depth: u16,
}

impl Generator {
    pub(super) fn next(&self) -> Option<Value> {
        self.values.borrow_mut().next()
    }

    pub(super) fn rest(&self) -> Vec<Value> {
        self.values.borrow_mut().by_ref().collect()
    }
}

pub(super) struct Cycler {
    pub(super) values: Vec<Value>,
    pub(super) at: Cell<usize>,
    pub(super) depth: u16,
}

/// Maximum values in a key: nested tuples may share one tuple many times.
const LARGEST_KEY: usize = 1000;

/// A key, compared by value: 1, 1.0 and true are equal.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    None,
    Int(i128),
    Float(u64),
    Str(Arc<str>),
    Tuple(Vec<Key>),
}

/// A dict in insertion order.
#[derive(Clone, Default)]
pub(super) struct Dict {
    pub(super) entries: Vec<(Value, Value)>,
    /// Positions in `entries` by key, only in dicts of more than `SMALL` entries.
    index: HashMap<Key, usize>,
    depth: u16,
}

const SMALL: usize = 8;

impl Dict {
    pub(super) fn from_entries(
        entries: impl IntoIterator<Item = (Value, Value)>,
    ) -> Result<Self, Error> {
        let mut dict = Self::default();
        for (key, value) in entries {
            dict.insert(key, value)?;
        }
        Ok(dict)
    }

    pub(super) fn insert(&mut self, key: Value, value: Value) -> Result<(), Error> {
        let depth =
            depth_of(std::slice::from_ref(&value))?.max(depth_of(std::slice::from_ref(&key))?);
        self.depth = self.depth.max(depth);
        self.put(key, value)
    }

    /// Inserts a member of a namespace, whose lists remain mutable.
    pub(super) fn put(&mut self, key: Value, value: Value) -> Result<(), Error> {
        match self.position(&key)? {
            Some(at) => self.entries[at].1 = value,
            None => {
                if self.entries.len() == SMALL {
                    for (at, (key, _)) in self.entries.iter().enumerate() {
                        self.index.insert(key.key()?, at);
                    }
                }
                if self.entries.len() >= SMALL {
                    self.index.insert(key.key()?, self.entries.len());
                }
                self.entries.push((key, value));
            }
        }
        Ok(())
    }

    fn position(&self, key: &Value) -> Result<Option<usize>, Error> {
        if self.entries.len() > SMALL {
            return Ok(self.index.get(&key.key()?).copied());
        }
        if let Some(text) = key.as_str() {
            let same = |(key, _): &(Value, Value)| key.as_str() == Some(text);
            return Ok(self.entries.iter().position(same));
        }
        let key = key.key()?;
        for (at, (other, _)) in self.entries.iter().enumerate() {
            if other.key()? == key {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    pub(super) fn get(&self, key: &Value) -> Result<Option<Value>, Error> {
        Ok(self.position(key)?.map(|at| self.entries[at].1.clone()))
    }

    pub(super) fn named(&self, name: &str) -> Option<&Value> {
        if self.entries.len() > SMALL {
            let at = self.index.get(&Key::Str(name.into()))?;
            return Some(&self.entries[*at].1);
        }
        let mut entries = self.entries.iter();
        let found = entries.find(|(key, _)| key.as_str() == Some(name));
        found.map(|(_, value)| value)
    }

    pub(super) fn view(&self, view: View) -> Result<Vec<Value>, Error> {
        let entries = self.entries.iter();
        entries
            .map(|(key, value)| match view {
                View::Keys => Ok(key.clone()),
                View::Values => Ok(value.clone()),
                View::Items => Value::tuple(vec![key.clone(), value.clone()]),
            })
            .collect()
    }
}

/// Nesting depth of a container of the values. Lists among the values become immutable.
fn depth_of(values: &[Value]) -> Result<u16, Error> {
    let mut deepest = 0;
    for value in values {
        let depth = match value {
            Value::List(list) => {
                list.contained.set(true);
                list.depth.get()
            }
            Value::Tuple(items) => items.depth,
            Value::Dict(dict) | Value::View(_, dict) => dict.depth,
            Value::Iterator(values) => values.depth,
            Value::Method(_, depth) => *depth,
            Value::Loop(object) => object.depth,
            Value::Cycler(cycler) => cycler.depth,
            _ => 0,
        };
        deepest = deepest.max(depth);
    }
    if deepest >= DEEPEST {
        return Err(Error::failed("a value is nested too deeply"));
    }
    Ok(deepest + 1)
}

impl Value {
    pub(super) fn str(text: impl Into<Arc<str>>) -> Self {
        Self::Str(text.into())
    }

    pub(super) fn undefined(message: impl Into<Arc<str>>) -> Self {
        Self::Undefined(message.into())
    }

    pub(super) fn list(values: Vec<Self>) -> Result<Self, Error> {
        Ok(Self::List(Rc::new(List {
            depth: Cell::new(depth_of(&values)?),
            values: RefCell::new(values),
            contained: Cell::new(false),
        })))
    }

    pub(super) fn tuple(values: Vec<Self>) -> Result<Self, Error> {
        Self::items(values, false)
    }

    /// A key and its items, as from `groupby`.
    pub(super) fn group(key: Self, values: Vec<Self>) -> Result<Self, Error> {
        Self::items(vec![key, Self::list(values)?], true)
    }

    fn items(values: Vec<Self>, is_group: bool) -> Result<Self, Error> {
        let depth = depth_of(&values)?;
        Ok(Self::Tuple(Rc::new(Items {
            values,
            depth,
            is_group,
        })))
    }

    pub(super) fn dict(entries: impl IntoIterator<Item = (Self, Self)>) -> Result<Self, Error> {
        Ok(Self::Dict(Rc::new(Dict::from_entries(entries)?)))
    }

    pub(super) fn generator(values: Vec<Self>) -> Result<Self, Error> {
        let depth = depth_of(&values)?;
        let values = RefCell::new(values.into_iter());
        Ok(Self::Iterator(Rc::new(Generator { values, depth })))
    }

    pub(super) fn method(self, name: &str) -> Result<Self, Error> {
        // A method holds its value like a container, but may change it.
        let depth = match &self {
            Self::List(list) if !list.contained.get() => list.depth.get().saturating_add(1),
            value => depth_of(std::slice::from_ref(value))?,
        };
        Ok(Self::Method(Rc::new((self, name.into())), depth))
    }

    /// Nesting depth of a container of the values.
    pub(super) fn depth(values: &[Self]) -> Result<u16, Error> {
        depth_of(values)
    }

    pub(super) fn from_json(json: &serde_json::Value) -> Result<Self, Error> {
        use serde_json::Value as Json;
        Ok(match json {
            Json::Null => Self::None,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Self::Int(value.into()),
                (None, Some(value)) => Self::Int(value.into()),
                (None, None) => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::str(text.as_str()),
            Json::Array(items) => {
                let items: Result<_, _> = items.iter().map(Self::from_json).collect();
                Self::list(items?)?
            }
            Json::Object(members) => {
                let mut dict = Dict::default();
                for (key, value) in members {
                    dict.insert(Self::str(key.as_str()), Self::from_json(value)?)?;
                }
                Self::Dict(Rc::new(dict))
            }
        })
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) | Self::Markup(text) => Some(text),
            _ => None,
        }
    }

    /// An int, or a bool converted to one.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Bool(value) => Some((*value).into()),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            other => other.as_int().map(|value| value as f64),
        }
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    /// Python's name of the type.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::Markup(_) => "Markup",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::View(View::Keys, _) => "dict_keys",
            Self::View(View::Values, _) => "dict_values",
            Self::View(View::Items, _) => "dict_items",
            Self::Range(_) => "range",
            Self::Slice(_) => "slice",
            Self::Iterator(_) => "generator",
            Self::Namespace(_) => "Namespace",
            Self::Macro(_) => "Macro",
            Self::Loop(_) => "LoopContext",
            Self::Method(..) => "builtin_function_or_method",
            Self::Function(_) => "function",
            Self::Cycler(_) => "Cycler",
            Self::Joiner(_) => "Joiner",
        }
    }

    /// # Errors
    /// The value is undefined.
    pub(super) fn defined(&self) -> Result<&Self, Error> {
        match self {
            Self::Undefined(message) => Err(Error::failed(&**message)),
            value => Ok(value),
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Str(text) | Self::Markup(text) => !text.is_empty(),
            _ => self.len().is_none_or(|len| len > 0),
        }
    }

    /// `len(value)`, for types that have a length.
    pub(super) fn len(&self) -> Option<usize> {
        Some(match self {
            Self::Undefined(_) => 0,
            Self::Str(text) | Self::Markup(text) => match text.is_ascii() {
                true => text.len(),
                false => text.chars().count(),
            },
            Self::List(list) => list.values().len(),
            Self::Tuple(items) => items.values.len(),
            Self::Dict(dict) | Self::View(_, dict) => dict.entries.len(),
            Self::Range(range) => range.len,
            _ => return None,
        })
    }

    /// Converts the value to a dict key.
    ///
    /// # Errors
    /// The type is not hashable, or a tuple has too many values.
    pub(super) fn key(&self) -> Result<Key, Error> {
        let mut left = LARGEST_KEY;
        self.key_within(&mut left)
    }

    fn key_within(&self, left: &mut usize) -> Result<Key, Error> {
        *left = left
            .checked_sub(1)
            .ok_or_else(|| Error::limit("a key has too many values"))?;
        Ok(match self {
            Self::None => Key::None,
            Self::Bool(value) => Key::Int((*value).into()),
            Self::Int(value) => Key::Int(*value),
            Self::Float(value) if value.fract() == 0.0 && value.abs() < 1e30 => {
                Key::Int(*value as i128)
            }
            Self::Float(value) => Key::Float(value.to_bits()),
            Self::Str(text) | Self::Markup(text) => Key::Str(text.clone()),
            Self::Tuple(items) => {
                let keys = items.values.iter().map(|value| value.key_within(left));
                let keys: Result<_, _> = keys.collect();
                Key::Tuple(keys?)
            }
            other => {
                let message = format!("unhashable type: '{}'", other.kind());
                return Err(Error::failed(message));
            }
        })
    }
}
