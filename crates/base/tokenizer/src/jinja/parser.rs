//! Parser of statements.

use std::sync::Arc;

use super::ast::{Body, Expr, For, Implicit, Macro, Name, Node, Target};
use super::error::Error;
use super::lexer::{Placed, Token, tokens};

/// Maximum nesting of statements, and of expressions.
const DEEPEST: usize = 60;

pub(super) struct Parser {
    tokens: Vec<Placed>,
    at: usize,
    depth: usize,
    /// Within `if`, an unknown filter is an error only when it runs.
    lenient: bool,
    /// Errors of unknown filters and tests.
    pub(super) unknown: Vec<Error>,
    /// Implicit variables read by each enclosing macro.
    macros: Vec<Implicit>,
    loops: usize,
}

pub(super) fn parse(source: &str) -> Result<Body, Error> {
    let mut parser = Parser {
        tokens: tokens(source)?,
        at: 0,
        depth: 0,
        lenient: false,
        unknown: Vec::new(),
        macros: Vec::new(),
        loops: 0,
    };
    let body = parser.body(&[])?;
    match parser.unknown.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(body),
    }
}

impl Parser {
    pub(super) fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    pub(super) fn look(&self) -> &Token {
        let last = self.tokens.len() - 1;
        &self.tokens[(self.at + 1).min(last)].0
    }

    fn line(&self) -> u32 {
        self.tokens[self.at].1
    }

    pub(super) fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    pub(super) fn fail<T>(&self, message: impl Into<String>) -> Result<T, Error> {
        Err(Error::syntax(message, self.line()))
    }

    /// Records an unknown filter or test.
    pub(super) fn not_known(&mut self, kind: &str, name: &str) {
        if !self.lenient {
            let message = format!("No {kind} named '{name}'.");
            self.unknown.push(Error::syntax(message, self.line()));
        }
    }

    pub(super) fn is_name(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Name(name) if &**name == word)
    }

    pub(super) fn is_op(&self, operator: &str) -> bool {
        matches!(self.peek(), Token::Op(op) if *op == operator)
    }

    pub(super) fn skip_name(&mut self, word: &str) -> bool {
        let found = self.is_name(word);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn skip_op(&mut self, operator: &str) -> bool {
        let found = self.is_op(operator);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn expect_op(&mut self, operator: &str) -> Result<(), Error> {
        if self.skip_op(operator) {
            return Ok(());
        }
        self.fail(format!("expected '{operator}', got {}", self.shown()))
    }

    pub(super) fn shown(&self) -> String {
        match self.peek() {
            Token::Op(op) => format!("'{op}'"),
            Token::Name(name) => format!("'{name}'"),
            Token::Str(_) => "a string".into(),
            Token::Int(_) | Token::Float(_) => "a number".into(),
            Token::BlockEnd => "the end of the statement".into(),
            Token::VariableEnd => "the end of the print statement".into(),
            _ => "the end of the template".into(),
        }
    }

    pub(super) fn expect_name(&mut self) -> Result<Name, Error> {
        if let Token::Name(name) = self.peek().clone() {
            self.next();
            return Ok(name);
        }
        self.fail(format!("expected a name, got {}", self.shown()))
    }

    /// Runs `parse` one nesting level deeper.
    pub(super) fn nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.depth >= DEEPEST {
            return self.fail("it is nested too deeply");
        }
        self.depth += 1;
        let found = parse(self);
        self.depth -= 1;
        found
    }

    /// Records in the enclosing macros that the template reads `name`.
    pub(super) fn reads(&mut self, name: &str) {
        for implicit in &mut self.macros {
            match name {
                "caller" => implicit.caller = true,
                "varargs" => implicit.varargs = true,
                "kwargs" => implicit.kwargs = true,
                _ => {}
            }
        }
    }

    /// Nodes up to a statement that starts with one of `ends`, which is not consumed.
    fn body(&mut self, ends: &[&str]) -> Result<Body, Error> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            match self.next() {
                Token::Data(text) => body.push((Node::Text(text), line)),
                Token::VariableBegin => {
                    let printed = self.tuple(true, &[])?;
                    if self.next() != Token::VariableEnd {
                        self.at -= 1;
                        let shown = self.shown();
                        return self.fail(format!(
                            "expected the end of the print statement, got {shown}"
                        ));
                    }
                    body.push((Node::Print(vec![printed]), line));
                }
                Token::BlockBegin => {
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    let node = self.nested(Self::statement)?;
                    self.block_end()?;
                    body.push((node, line));
                }
                _ if ends.is_empty() => return Ok(body),
                _ => {
                    let ends = ends.join("' or '");
                    return self.fail(format!("unexpected end of template, expected '{ends}'"));
                }
            }
        }
    }

    /// The body of the current statement, up to one of `ends`.
    fn inner(&mut self, ends: &[&str]) -> Result<Body, Error> {
        self.skip_op(":");
        self.block_end()?;
        self.body(ends)
    }

    /// Like [`Self::inner`]; consumes `end`.
    fn inner_to(&mut self, end: &str) -> Result<Body, Error> {
        let body = self.inner(&[end])?;
        self.next();
        Ok(body)
    }

    /// Parses a body with its own scope, in which unknown filters are immediate errors.
    fn own_scope<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let lenient = std::mem::replace(&mut self.lenient, false);
        let found = parse(self);
        self.lenient = lenient;
        found
    }

    fn block_end(&mut self) -> Result<(), Error> {
        if *self.peek() != Token::BlockEnd {
            return self.fail(format!(
                "expected the end of the statement, got {}",
                self.shown()
            ));
        }
        self.next();
        Ok(())
    }

    fn statement(&mut self) -> Result<Node, Error> {
        let Token::Name(word) = self.peek().clone() else {
            return self.fail("tag name expected");
        };
        self.next();
        match &*word {
            "for" => self.for_loop(),
            "if" => self.condition(),
            "set" => self.set(),
            "macro" => self.macro_of(),
            "call" => self.call(),
            "filter" => {
                let filter = self.filter_of_block()?;
                let body = self.own_scope(|p| p.inner_to("endfilter"))?;
                Ok(Node::Filter(filter, body))
            }
            "with" => self.with(),
            "block" => {
                self.expect_name()?;
                while self.skip_name("scoped") || self.skip_name("required") {}
                let body = self.own_scope(|p| p.inner_to("endblock"))?;
                if matches!(self.peek(), Token::Name(_)) {
                    self.next();
                }
                Ok(Node::Scope(body))
            }
            // Marks the assistant's tokens for training.
            "generation" => {
                let body = self.own_scope(|p| p.inner_to("endgeneration"))?;
                Ok(Node::Scope(body))
            }
            "autoescape" => {
                self.expression()?;
                self.own_scope(|p| p.inner_to("endautoescape"))
                    .map(Node::Scope)
            }
            "print" => {
                let mut printed = Vec::new();
                while *self.peek() != Token::BlockEnd {
                    if !printed.is_empty() {
                        self.expect_op(",")?;
                    }
                    printed.push(self.expression()?);
                }
                Ok(Node::Print(printed))
            }
            "do" => self.tuple(true, &[]).map(Node::Do),
            "break" | "continue" if self.loops == 0 => {
                self.fail(format!("'{word}' outside of a loop"))
            }
            "break" => Ok(Node::Break),
            "continue" => Ok(Node::Continue),
            "include" => self.loads("include"),
            "import" => self.loads("import"),
            "from" => self.loads("from"),
            "extends" => self.loads("extends"),
            other => self.fail(format!("Encountered unknown tag '{other}'.")),
        }
    }

    fn loads(&mut self, word: &'static str) -> Result<Node, Error> {
        while !matches!(self.peek(), Token::BlockEnd | Token::End) {
            self.next();
        }
        Ok(Node::Loads(word))
    }

    fn for_loop(&mut self) -> Result<Node, Error> {
        let target = self.target(&["in"], false)?;
        if !self.skip_name("in") {
            return self.fail(format!("expected 'in', got {}", self.shown()));
        }
        let values = self.tuple(false, &["recursive"])?;
        self.loops += 1;
        let rest = self.own_scope(|p| {
            let condition = match p.skip_name("if") {
                true => Some(p.expression()?),
                false => None,
            };
            let recursive = p.skip_name("recursive");
            let body = p.inner(&["endfor", "else"])?;
            Ok((condition, recursive, body))
        });
        self.loops -= 1;
        let (condition, recursive, body) = rest?;
        let otherwise = match self.skip_name("else") {
            true => self.own_scope(|p| p.inner(&["endfor"]))?,
            false => Vec::new(),
        };
        self.next();
        Ok(Node::For(Arc::new(For {
            target,
            values,
            condition,
            recursive,
            body,
            otherwise,
        })))
    }

    fn condition(&mut self) -> Result<Node, Error> {
        let lenient = std::mem::replace(&mut self.lenient, true);
        let mut branches = Vec::new();
        let otherwise = loop {
            let test = self.tuple(false, &[])?;
            let body = self.inner(&["elif", "else", "endif"])?;
            branches.push((test, body));
            if self.skip_name("elif") {
                continue;
            }
            if self.skip_name("else") {
                break self.inner(&["endif"])?;
            }
            break Vec::new();
        };
        self.next();
        self.lenient = lenient;
        Ok(Node::If(branches, otherwise))
    }

    fn set(&mut self) -> Result<Node, Error> {
        let target = self.target(&[], true)?;
        if self.skip_op("=") {
            return Ok(Node::Set(target, self.tuple(true, &[])?));
        }
        let filter = match self.is_op("|") {
            true => {
                self.next();
                Some(self.filter_of_block()?)
            }
            false => None,
        };
        let body = self.own_scope(|p| p.inner_to("endset"))?;
        Ok(Node::SetBlock(target, filter, body))
    }

    fn with(&mut self) -> Result<Node, Error> {
        let mut values = Vec::new();
        while !matches!(self.peek(), Token::BlockEnd) {
            if !values.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.target(&[], false)?;
            self.expect_op("=")?;
            values.push((target, self.expression()?));
        }
        let body = self.own_scope(|p| p.inner_to("endwith"))?;
        Ok(Node::With(values, body))
    }

    fn macro_of(&mut self) -> Result<Node, Error> {
        let name = self.expect_name()?;
        let (definition, ()) = self.definition(name, |_| Ok(()), "endmacro")?;
        Ok(Node::Macro(definition))
    }

    fn call(&mut self) -> Result<Node, Error> {
        let called = |p: &mut Self| {
            let call = p.expression()?;
            match call {
                Expr::Call(..) => Ok(call),
                _ => p.fail("expected call"),
            }
        };
        let (definition, call) = self.definition("caller".into(), called, "endcall")?;
        Ok(Node::Call(definition, call))
    }

    /// Parses a macro or `call` block: parameters, then `between`, then a body up to `end`.
    fn definition<T>(
        &mut self,
        name: Name,
        between: impl FnOnce(&mut Self) -> Result<T, Error>,
        end: &str,
    ) -> Result<(Arc<Macro>, T), Error> {
        let (mut parameters, mut defaults) = (Vec::new(), Vec::new());
        if end == "endmacro" || self.is_op("(") {
            self.expect_op("(")?;
            while !self.is_op(")") {
                if !parameters.is_empty() {
                    self.expect_op(",")?;
                }
                parameters.push(self.expect_name()?);
                if self.skip_op("=") {
                    defaults.push(self.own_scope(Self::expression)?);
                } else if !defaults.is_empty() {
                    return self.fail("non-default argument follows default argument");
                }
            }
            self.next();
        }
        let between = between(self)?;
        self.macros.push(Implicit::default());
        let loops = std::mem::take(&mut self.loops);
        let body = self.own_scope(|p| p.inner_to(end))?;
        self.loops = loops;
        let mut reads = self.macros.pop().unwrap_or_default();
        let own = |name: &str| parameters.iter().any(|p| &**p == name);
        reads.caller &= !own("caller");
        reads.varargs &= !own("varargs");
        reads.kwargs &= !own("kwargs");
        let definition = Arc::new(Macro {
            name,
            parameters,
            defaults,
            body,
            reads,
        });
        Ok((definition, between))
    }

    /// Parses the target of an assignment, up to a name in `ends`.
    fn target(&mut self, ends: &[&str], members: bool) -> Result<Target, Error> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        loop {
            if !targets.is_empty() {
                self.expect_op(",")?;
            }
            let over = matches!(self.peek(), Token::BlockEnd | Token::Op(")" | "="));
            if over || ends.iter().any(|end| self.is_name(end)) {
                break;
            }
            targets.push(self.nested(|p| p.single_target(members))?);
            if !self.is_op(",") {
                break;
            }
            is_tuple = true;
        }
        match targets.pop() {
            Some(single) if !is_tuple => Ok(single),
            Some(last) => {
                targets.push(last);
                Ok(Target::Tuple(targets))
            }
            None => self.fail(format!("expected a name, got {}", self.shown())),
        }
    }

    fn single_target(&mut self, members: bool) -> Result<Target, Error> {
        if self.skip_op("(") {
            let inner = self.target(&[], members)?;
            self.expect_op(")")?;
            return Ok(inner);
        }
        let name = self.expect_name()?;
        if matches!(
            &*name,
            "true" | "false" | "none" | "True" | "False" | "None"
        ) {
            return self.fail(format!("can't assign to '{name}'"));
        }
        if members && self.skip_op(".") {
            return Ok(Target::Member(name, self.expect_name()?));
        }
        Ok(Target::Name(name))
    }
}
