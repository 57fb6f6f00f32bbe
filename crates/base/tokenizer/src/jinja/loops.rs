//! `for` loops and their variable `loop`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::ast::For;
use super::error::Error;
use super::functions::Args;
use super::machine::{Flow, Machine, Scope};
use super::output::Output;
use super::value::{Generator, Object, Value};

/// The state of a loop.
struct Loop {
    definition: Arc<For>,
    scope: Rc<Scope>,
    source: RefCell<Source>,
    /// Lookahead value, read by `nextitem` or `last`.
    after: RefCell<Option<Value>>,
    current: RefCell<Value>,
    before: RefCell<Value>,
    /// Index of the iteration from 0; -1 before the first iteration.
    index: Cell<i64>,
    length: Cell<Option<usize>>,
    level: usize,
    changed: RefCell<Option<Vec<Value>>>,
}

enum Source {
    Values(std::vec::IntoIter<Value>),
    Generator(Rc<Generator>),
}

impl Source {
    fn next(&mut self) -> Option<Value> {
        match self {
            Self::Values(values) => values.next(),
            Self::Generator(values) => values.next(),
        }
    }
}

impl Loop {
    fn outside() -> Value {
        Value::undefined("there is no item there")
    }
}

impl Machine {
    pub(super) fn run_loop(
        &self,
        definition: &Arc<For>,
        values: Value,
        scope: &Rc<Scope>,
        level: usize,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let (source, length) = match &values {
            Value::Iterator(generator) => (Source::Generator(generator.clone()), None),
            other => {
                let values = self.values(other)?;
                let length = other.len();
                (Source::Values(values.into_iter()), length)
            }
        };
        let depth = match &source {
            Source::Values(values) => Value::depth(values.as_slice())?,
            Source::Generator(_) => Value::depth(std::slice::from_ref(&values))?,
        };
        let state = Rc::new(Loop {
            definition: definition.clone(),
            scope: scope.clone(),
            source: RefCell::new(source),
            after: RefCell::new(None),
            current: RefCell::new(Loop::outside()),
            before: RefCell::new(Loop::outside()),
            index: Cell::new(-1),
            length: Cell::new(length.filter(|_| definition.condition.is_none())),
            level,
            changed: RefCell::new(None),
        });
        let name: Arc<str> = "loop".into();
        let object = Object::new(state.clone(), &name, depth);
        while let Some(value) = self.next_of(&state)? {
            let inner = Scope::within(scope);
            inner.set(&name, Value::Loop(object.clone()));
            self.assign(&definition.target, value, &inner)?;
            if self.run(&definition.body, &inner, out)? == Flow::Break {
                break;
            }
        }
        if object.is_shared() {
            self.keep_scope(scope);
        }
        if state.index.get() < 0 {
            self.run(&definition.otherwise, &Scope::within(scope), out)?;
        }
        Ok(())
    }

    /// The next value that satisfies the loop's condition.
    fn pull(&self, state: &Loop) -> Result<Option<Value>, Error> {
        loop {
            self.step()?;
            let next = state.source.borrow_mut().next();
            let (Some(value), Some(condition)) = (&next, &state.definition.condition) else {
                return Ok(next);
            };
            let inner = Scope::within(&state.scope);
            self.assign(&state.definition.target, value.clone(), &inner)?;
            if self.evaluate(condition, &inner)?.is_true() {
                return Ok(next);
            }
        }
    }

    fn next_of(&self, state: &Loop) -> Result<Option<Value>, Error> {
        let looked_at = state.after.take();
        let next = match looked_at {
            Some(value) => Some(value),
            None => self.pull(state)?,
        };
        if let Some(value) = &next {
            state.index.set(state.index.get() + 1);
            state.before.replace(state.current.replace(value.clone()));
        }
        Ok(next)
    }

    fn peek(&self, state: &Loop) -> Result<Option<Value>, Error> {
        if state.after.borrow().is_none() {
            let next = self.pull(state)?;
            state.after.replace(next);
        }
        Ok(state.after.borrow().clone())
    }

    /// The remaining values, each paired with the loop.
    pub(super) fn rest_of(&self, object: &Object) -> Result<Vec<Value>, Error> {
        let state = object.get::<Loop>()?;
        let mut rest = Vec::new();
        while let Some(value) = self.next_of(&state)? {
            rest.push(Value::tuple(vec![value, Value::Loop(object.clone())])?);
        }
        Ok(rest)
    }

    fn length_of(&self, state: &Loop) -> Result<i64, Error> {
        if let Some(length) = state.length.get() {
            return Ok(length as i64);
        }
        let mut rest: Vec<Value> = state.after.take().into_iter().collect();
        while let Some(value) = self.pull(state)? {
            rest.push(value);
        }
        let length = rest.len() + (state.index.get() + 1).max(0) as usize;
        state.length.set(Some(length));
        let mut rest = rest.into_iter();
        // Already filtered; kept as lookahead so that the condition is not evaluated again.
        if state.definition.condition.is_some() {
            state.after.replace(rest.next());
        }
        state.source.replace(Source::Values(rest));
        Ok(length as i64)
    }

    pub(super) fn loop_attribute(
        &self,
        object: &Object,
        name: &str,
    ) -> Result<Option<Value>, Error> {
        let state = &object.get::<Loop>()?;
        let index = state.index.get();
        let int = |value: i64| Value::Int(value.into());
        Ok(Some(match name {
            "index" => int(index + 1),
            "index0" => int(index),
            "first" => Value::Bool(index == 0),
            "last" => Value::Bool(self.peek(state)?.is_none()),
            "length" => int(self.length_of(state)?),
            "revindex" => int(self.length_of(state)? - index),
            "revindex0" => int(self.length_of(state)? - index - 1),
            "depth" => int(state.level as i64 + 1),
            "depth0" => int(state.level as i64),
            "previtem" if index == 0 => Loop::outside(),
            "previtem" => state.before.borrow().clone(),
            "nextitem" => self.peek(state)?.unwrap_or_else(Loop::outside),
            "cycle" | "changed" => Value::Loop(object.clone()).method(name)?,
            _ => return Ok(None),
        }))
    }

    pub(super) fn loop_method(
        &self,
        object: &Object,
        name: &str,
        args: Args,
    ) -> Result<Value, Error> {
        let state = object.get::<Loop>()?;
        let values = args.positional;
        if name == "cycle" {
            if values.is_empty() {
                return Err(Error::failed("no items for cycling given"));
            }
            let at = state.index.get().max(0) as usize % values.len();
            return Ok(values[at].clone());
        }
        let mut last = state.changed.borrow_mut();
        let mut same = last.as_ref().is_some_and(|last| last.len() == values.len());
        for (a, b) in last.iter().flatten().zip(&values) {
            same = same && a.equals(b, &self.steps)?;
        }
        if !same {
            *last = Some(values);
        }
        Ok(Value::Bool(!same))
    }

    /// `loop(values)` in a recursive loop.
    pub(super) fn call_loop(&self, object: &Object, args: Args) -> Result<Value, Error> {
        let state = object.get::<Loop>()?;
        if !state.definition.recursive {
            let message = "The loop must have the 'recursive' marker to be called recursively.";
            return Err(Error::failed(message));
        }
        let [values] = args.bind("loop", ["iterable"])?;
        let values = values.ok_or_else(|| Error::failed("loop() takes an iterable"))?;
        let mut out = Output::new(&self.steps);
        self.called(|| {
            self.run_loop(
                &state.definition,
                values,
                &state.scope,
                state.level + 1,
                &mut out,
            )
        })?;
        Ok(Value::str(out.into_text()))
    }
}
