//! Executes a template's statements.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::SystemTime;

use super::ast::{Body, Name, Node, Target};
use super::error::Error;
use super::output::{Output, Steps};
use super::value::{Dict, Value};

/// Maximum stack bytes of a rendering; a thread has 2 MiB.
const STACK: usize = 900 << 10;
/// Maximum nesting of macros and recursive loops.
const CALLS: usize = 200;

/// Variables of a body, with its parent scope.
#[derive(Default)]
pub(super) struct Scope {
    names: RefCell<Vec<(Name, Value)>>,
    parent: Option<Rc<Self>>,
}

impl Scope {
    pub(super) fn within(parent: &Rc<Self>) -> Rc<Self> {
        Rc::new(Self {
            names: RefCell::default(),
            parent: Some(parent.clone()),
        })
    }

    pub(super) fn set(&self, name: &Name, value: Value) {
        let mut names = self.names.borrow_mut();
        match names.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = value,
            None => names.push((name.clone(), value)),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<Value> {
        let mut scope = Some(self);
        while let Some(current) = scope {
            let names = current.names.borrow();
            if let Some((_, value)) = names.iter().find(|(other, _)| &**other == name) {
                return Some(value.clone());
            }
            scope = current.parent.as_deref();
        }
        None
    }
}

/// An object that may contain itself or a long chain of others. Cleared after the rendering.
enum CycleRoot {
    Scope(Rc<Scope>),
    Namespace(Rc<RefCell<Dict>>),
}

/// State of one rendering.
pub(super) struct Machine {
    pub(super) steps: Steps,
    /// Stack address at the start of the rendering.
    stack: usize,
    pub(super) calls: Cell<usize>,
    kept: RefCell<Vec<CycleRoot>>,
    pub(super) variables: HashMap<Name, Value>,
    pub(super) now: SystemTime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    On,
    Break,
    Continue,
}

fn stack_address() -> usize {
    let here = 0_u8;
    std::hint::black_box(&raw const here) as usize
}

impl Machine {
    pub(super) fn new(variables: HashMap<Name, Value>, now: SystemTime) -> Self {
        Self {
            steps: Steps::default(),
            stack: stack_address(),
            calls: Cell::new(0),
            kept: RefCell::default(),
            variables,
            now,
        }
    }

    /// Renders a template with the variables.
    pub(super) fn render(&self, body: &Body) -> Result<String, Error> {
        let mut out = Output::new(&self.steps);
        let ended = self.run(body, &Rc::new(Scope::default()), &mut out);
        for kept in self.kept.take() {
            match kept {
                CycleRoot::Scope(scope) => drop(scope.names.take()),
                CycleRoot::Namespace(members) => drop(members.take()),
            }
        }
        ended.map(|_| out.into_text())
    }

    /// Charges the step budget for `bytes` bytes of text.
    pub(super) fn charge(&self, bytes: usize) -> Result<(), Error> {
        self.steps.charge(bytes)
    }

    /// Charges the step budget for hashing or comparing `value`, if it is text.
    pub(super) fn charge_text(&self, value: &Value) -> Result<(), Error> {
        self.charge(value.as_str().map_or(0, str::len))
    }

    /// Charges a step for each of `values`.
    pub(super) fn charge_values(&self, values: usize) -> Result<(), Error> {
        self.steps.charge_values(values)
    }

    /// Charges one step and checks that enough of the stack is left.
    pub(super) fn step(&self) -> Result<(), Error> {
        if self.stack.abs_diff(stack_address()) > STACK {
            return Err(Error::failed("it is nested too deeply"));
        }
        self.steps.take(1)
    }

    /// Runs `work`, the body of a macro or recursive loop, one call level deeper.
    pub(super) fn called<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        if self.calls.get() >= CALLS {
            return Err(Error::failed("maximum recursion depth exceeded"));
        }
        self.calls.set(self.calls.get() + 1);
        let result = work();
        self.calls.set(self.calls.get() - 1);
        result
    }

    /// Registers the scope to be cleared after the rendering: its values may refer to it, or form a
    /// chain whose drop would recurse.
    pub(super) fn keep_scope(&self, scope: &Rc<Scope>) {
        let mut kept = self.kept.borrow_mut();
        if !matches!(kept.last(), Some(CycleRoot::Scope(last)) if Rc::ptr_eq(last, scope)) {
            kept.push(CycleRoot::Scope(scope.clone()));
        }
    }

    pub(super) fn namespace(&self, members: Dict) -> Value {
        let members = Rc::new(RefCell::new(members));
        let kept = CycleRoot::Namespace(members.clone());
        self.kept.borrow_mut().push(kept);
        Value::Namespace(members)
    }

    pub(super) fn run(
        &self,
        body: &Body,
        scope: &Rc<Scope>,
        out: &mut Output<'_>,
    ) -> Result<Flow, Error> {
        for (node, line) in body {
            let flow = self.statement(node, scope, out);
            let flow = flow.map_err(|error| error.at(*line))?;
            if out.len() > super::OUTPUT_LIMIT {
                let limit = super::OUTPUT_LIMIT >> 20;
                return Err(Error::limit(format!("it wrote more than {limit} MiB")));
            }
            if flow != Flow::On {
                return Ok(flow);
            }
        }
        Ok(Flow::On)
    }

    /// Renders a body to text.
    pub(super) fn text_of(&self, body: &Body, scope: &Rc<Scope>) -> Result<String, Error> {
        let mut out = Output::new(&self.steps);
        self.run(body, scope, &mut out)?;
        Ok(out.into_text())
    }

    fn statement(
        &self,
        node: &Node,
        scope: &Rc<Scope>,
        out: &mut Output<'_>,
    ) -> Result<Flow, Error> {
        self.step()?;
        match node {
            Node::Text(text) => out.push_str(text)?,
            Node::Print(values) => {
                for value in values {
                    self.evaluate(value, scope)?.write_text(out)?;
                }
            }
            Node::If(branches, otherwise) => {
                for (test, body) in branches {
                    if self.evaluate(test, scope)?.is_true() {
                        return self.run(body, scope, out);
                    }
                }
                return self.run(otherwise, scope, out);
            }
            Node::For(loop_of) => {
                let values = self.evaluate(&loop_of.values, scope)?;
                self.run_loop(loop_of, values, scope, 0, out)?;
            }
            Node::Set(target, value) => {
                let value = self.evaluate(value, scope)?;
                self.assign(target, value, scope)?;
            }
            Node::SetBlock(target, filter, body) => {
                let text = Value::str(self.text_of(body, &Scope::within(scope))?);
                let value = match filter {
                    Some(filter) => self.filtered_block(filter, text, scope)?,
                    None => text,
                };
                self.assign(target, value, scope)?;
            }
            Node::Macro(definition) => {
                self.keep_scope(scope);
                scope.set(&definition.name, self.macro_value(definition, scope));
            }
            Node::Call(definition, call) => {
                self.keep_scope(scope);
                let caller = self.macro_value(definition, scope);
                let value = self.call_block(call, caller, scope)?;
                value.write_text(out)?;
            }
            Node::Filter(filter, body) => {
                let text = Value::str(self.text_of(body, &Scope::within(scope))?);
                let value = self.filtered_block(filter, text, scope)?;
                value.write_text(out)?;
            }
            Node::With(values, body) => {
                let inner = Scope::within(scope);
                for (target, value) in values {
                    let value = self.evaluate(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.run(body, &inner, out);
            }
            Node::Scope(body) => return self.run(body, &Scope::within(scope), out),
            Node::Do(value) => drop(self.evaluate(value, scope)?),
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
            Node::Loads(word) => {
                let message = format!("no other template can be loaded ({word})");
                return Err(Error::failed(message));
            }
        }
        Ok(Flow::On)
    }

    pub(super) fn assign(
        &self,
        target: &Target,
        value: Value,
        scope: &Rc<Scope>,
    ) -> Result<(), Error> {
        match target {
            Target::Name(name) => scope.set(name, value),
            Target::Member(name, member) => match self.variable(name, scope) {
                Value::Namespace(members) => {
                    members
                        .borrow_mut()
                        .put(Value::Str(member.clone()), value)?;
                }
                _ => {
                    let message = "cannot assign attribute on non-namespace object";
                    return Err(Error::failed(message));
                }
            },
            Target::Tuple(targets) => {
                let values = self.values(&value)?;
                if values.len() != targets.len() {
                    let (some, word) = match values.len() < targets.len() {
                        true => (values.len().to_string(), "not enough"),
                        false => ("more".to_owned(), "too many"),
                    };
                    return Err(Error::failed(format!(
                        "{word} values to unpack (expected {}, got {some})",
                        targets.len()
                    )));
                }
                for (target, value) in targets.iter().zip(values) {
                    self.assign(target, value, scope)?;
                }
            }
        }
        Ok(())
    }
}
