//! Parser of expressions.

use super::ast::{Arguments, Comparison, Expr, Name, Operator};
use super::error::Error;
use super::lexer::Token;
use super::names::{is_filter, is_test};
use super::parser::Parser;

/// Maximum subscripts, calls, filters and tests in a chain.
const LONGEST: usize = 256;

impl Parser {
    pub(super) fn expression(&mut self) -> Result<Expr, Error> {
        self.nested(Self::conditional)
    }

    fn conditional(&mut self) -> Result<Expr, Error> {
        let known = self.unknown.len();
        let mut value = self.or()?;
        let mut count = 0;
        while self.skip_name("if") {
            count += 1;
            if count > LONGEST {
                return self.fail("too many conditions in one expression");
            }
            let test = self.or()?;
            let otherwise = match self.skip_name("else") {
                true => Some(Box::new(self.nested(Self::conditional)?)),
                false => None,
            };
            value = Expr::Condition(Box::new([test, value]), otherwise);
            // An unknown filter in a branch is an error only when the branch runs.
            self.unknown.truncate(known);
        }
        Ok(value)
    }

    /// Parses comma-separated expressions as a tuple; a name in `ends` terminates it.
    pub(super) fn tuple(&mut self, conditional: bool, ends: &[&str]) -> Result<Expr, Error> {
        self.tuple_or(conditional, ends, false)
    }

    fn tuple_or(
        &mut self,
        conditional: bool,
        ends: &[&str],
        in_parentheses: bool,
    ) -> Result<Expr, Error> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            let over = matches!(
                self.peek(),
                Token::VariableEnd | Token::BlockEnd | Token::Op(")")
            );
            if over || ends.iter().any(|end| self.is_name(end)) {
                break;
            }
            items.push(match conditional {
                true => self.expression()?,
                false => self.nested(Self::or)?,
            });
            if !self.is_op(",") {
                break;
            }
            is_tuple = true;
        }
        if !is_tuple {
            if let Some(single) = items.pop() {
                return Ok(single);
            }
            if !in_parentheses {
                return self.fail(format!("Expected an expression, got {}", self.shown()));
            }
        }
        Ok(Expr::Tuple(items))
    }

    fn or(&mut self) -> Result<Expr, Error> {
        let mut parts = vec![self.and()?];
        while self.skip_name("or") {
            parts.push(self.and()?);
        }
        Ok(single_or(parts, Expr::Or))
    }

    fn and(&mut self) -> Result<Expr, Error> {
        let mut parts = vec![self.not()?];
        while self.skip_name("and") {
            parts.push(self.not()?);
        }
        Ok(single_or(parts, Expr::And))
    }

    fn not(&mut self) -> Result<Expr, Error> {
        if self.skip_name("not") {
            return Ok(Expr::Not(Box::new(self.nested(Self::not)?)));
        }
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let comparison = match self.peek() {
                Token::Op("==") => Comparison::Equal,
                Token::Op("!=") => Comparison::NotEqual,
                Token::Op("<") => Comparison::Less,
                Token::Op("<=") => Comparison::LessEqual,
                Token::Op(">") => Comparison::Greater,
                Token::Op(">=") => Comparison::GreaterEqual,
                Token::Name(name) if &**name == "in" => Comparison::In,
                Token::Name(name) if &**name == "not" => {
                    if !matches!(self.look(), Token::Name(name) if &**name == "in") {
                        break;
                    }
                    self.next();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.next();
            rest.push((comparison, self.sum()?));
        }
        Ok(match rest.is_empty() {
            true => first,
            false => Expr::Compare(Box::new(first), rest),
        })
    }

    /// Parses operands and operators of equal precedence.
    fn chain(
        &mut self,
        operators: &[(&str, Operator)],
        operand: impl Fn(&mut Self) -> Result<Expr, Error>,
    ) -> Result<Expr, Error> {
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some((_, operator)) = operators.iter().find(|(op, _)| self.is_op(op)) {
            self.next();
            rest.push((*operator, operand(self)?));
        }
        Ok(match rest.is_empty() {
            true => first,
            false => Expr::Chain(Box::new(first), rest),
        })
    }

    fn sum(&mut self) -> Result<Expr, Error> {
        let operators = [("+", Operator::Add), ("-", Operator::Sub)];
        self.chain(&operators, Self::concatenation)
    }

    fn concatenation(&mut self) -> Result<Expr, Error> {
        let mut parts = vec![self.product()?];
        while self.skip_op("~") {
            parts.push(self.product()?);
        }
        Ok(single_or(parts, Expr::Concat))
    }

    fn product(&mut self) -> Result<Expr, Error> {
        let operators = [
            ("*", Operator::Mul),
            ("/", Operator::Div),
            ("//", Operator::FloorDiv),
            ("%", Operator::Mod),
        ];
        self.chain(&operators, |p| {
            p.chain(&[("**", Operator::Pow)], |p| p.unary(true))
        })
    }

    fn unary(&mut self, with_filters: bool) -> Result<Expr, Error> {
        let mut value = if self.skip_op("-") {
            Expr::Negative(Box::new(self.nested(|p| p.unary(false))?))
        } else if self.skip_op("+") {
            Expr::Positive(Box::new(self.nested(|p| p.unary(false))?))
        } else {
            self.primary()?
        };
        for _ in 0..LONGEST {
            value = if self.is_op(".") || self.is_op("[") {
                self.subscript(value)?
            } else if self.is_op("(") {
                Expr::Call(Box::new(value), self.arguments()?)
            } else if with_filters && self.skip_op("|") {
                let (name, arguments) = self.filter()?;
                // After a filter, `.` and `[` are not subscripts of its result.
                self.filtered(Expr::Filter(Some(Box::new(value)), name, arguments))?
            } else if with_filters && self.is_name("is") {
                self.next();
                let test = self.test(value)?;
                self.filtered(test)?
            } else {
                return Ok(value);
            };
        }
        self.fail("too many subscripts, calls and filters in one expression")
    }

    /// Filters, tests and calls after a filter or a test.
    fn filtered(&mut self, mut value: Expr) -> Result<Expr, Error> {
        for _ in 0..LONGEST {
            value = if self.skip_op("|") {
                let (name, arguments) = self.filter()?;
                Expr::Filter(Some(Box::new(value)), name, arguments)
            } else if self.is_name("is") {
                self.next();
                self.test(value)?
            } else if self.is_op("(") {
                Expr::Call(Box::new(value), self.arguments()?)
            } else if self.is_op(".") || self.is_op("[") {
                return self.fail(format!("unexpected {}", self.shown()));
            } else {
                return Ok(value);
            };
        }
        self.fail("too many filters in one expression")
    }

    fn primary(&mut self) -> Result<Expr, Error> {
        match self.peek().clone() {
            Token::Name(name) => {
                self.next();
                self.reads(&name);
                Ok(match &*name {
                    "true" | "True" => Expr::Bool(true),
                    "false" | "False" => Expr::Bool(false),
                    "none" | "None" => Expr::None,
                    _ => Expr::Name(name),
                })
            }
            Token::Str(mut text) => {
                self.next();
                while let Token::Str(more) = self.peek().clone() {
                    self.next();
                    text.push_str(&more);
                }
                Ok(Expr::Str(text.into()))
            }
            Token::Int(value) => {
                self.next();
                Ok(Expr::Int(value))
            }
            Token::Float(value) => {
                self.next();
                Ok(Expr::Float(value))
            }
            Token::Op("(") => {
                self.next();
                let value = self.nested(|p| p.tuple_or(true, &[], true))?;
                self.expect_op(")")?;
                Ok(value)
            }
            Token::Op("[") => self.list(),
            Token::Op("{") => self.dict(),
            _ => self.fail(format!("unexpected {}", self.shown())),
        }
    }

    fn list(&mut self) -> Result<Expr, Error> {
        self.next();
        let mut items = Vec::new();
        while !self.is_op("]") {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            if self.is_op("]") {
                break;
            }
            items.push(self.expression()?);
        }
        self.expect_op("]")?;
        Ok(Expr::List(items))
    }

    fn dict(&mut self) -> Result<Expr, Error> {
        self.next();
        let mut items = Vec::new();
        while !self.is_op("}") {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            if self.is_op("}") {
                break;
            }
            let key = self.expression()?;
            self.expect_op(":")?;
            items.push((key, self.expression()?));
        }
        self.expect_op("}")?;
        Ok(Expr::Dict(items))
    }

    fn subscript(&mut self, value: Expr) -> Result<Expr, Error> {
        if self.skip_op(".") {
            return match self.next() {
                Token::Name(name) => Ok(Expr::Attribute(Box::new(value), name)),
                Token::Int(index) => Ok(Expr::Item(Box::new(value), Box::new(Expr::Int(index)))),
                _ => self.fail("expected name or number"),
            };
        }
        self.expect_op("[")?;
        let mut parts = Vec::new();
        while !self.is_op("]") {
            if !parts.is_empty() {
                self.expect_op(",")?;
            }
            parts.push(self.index()?);
        }
        self.expect_op("]")?;
        Ok(match parts.pop() {
            Some(single) if parts.is_empty() => Expr::Item(Box::new(value), Box::new(single)),
            last => {
                parts.extend(last);
                Expr::Item(Box::new(value), Box::new(Expr::Tuple(parts)))
            }
        })
    }

    fn index(&mut self) -> Result<Expr, Error> {
        let mut bounds = [None, None, None];
        if !self.is_op(":") {
            let first = self.expression()?;
            if !self.is_op(":") {
                return Ok(first);
            }
            bounds[0] = Some(first);
        }
        for bound in &mut bounds[1..] {
            if !self.skip_op(":") {
                break;
            }
            if !(self.is_op(":") || self.is_op("]") || self.is_op(",")) {
                *bound = Some(self.expression()?);
            }
        }
        Ok(Expr::Slice(Box::new(bounds)))
    }

    fn arguments(&mut self) -> Result<Arguments, Error> {
        self.expect_op("(")?;
        let mut arguments = Arguments::default();
        let mut first = true;
        while !self.is_op(")") {
            if !first {
                self.expect_op(",")?;
                if self.is_op(")") {
                    break;
                }
            }
            first = false;
            let only_named = arguments.named_rest.is_some();
            if self.skip_op("**") {
                arguments.named_rest = Some(Box::new(self.expression()?));
            } else if self.skip_op("*") {
                arguments.rest = Some(Box::new(self.expression()?));
            } else if let Token::Name(name) = self.peek().clone()
                && *self.look() == Token::Op("=")
            {
                self.next();
                self.next();
                arguments.named.push((name, self.expression()?));
            } else if only_named || !arguments.named.is_empty() || arguments.rest.is_some() {
                return self.fail("invalid syntax for function call expression");
            } else {
                arguments.positional.push(self.expression()?);
            }
        }
        self.expect_op(")")?;
        Ok(arguments)
    }

    /// Name and arguments of a filter, after its `|`.
    fn filter(&mut self) -> Result<(Name, Arguments), Error> {
        let name = self.dotted()?;
        if !is_filter(&name) {
            self.not_known("filter", &name);
        }
        let arguments = match self.is_op("(") {
            true => self.arguments()?,
            false => Arguments::default(),
        };
        Ok((name, arguments))
    }

    /// Filters of a filter block; the first has no `|`.
    pub(super) fn filter_of_block(&mut self) -> Result<Expr, Error> {
        let (name, arguments) = self.filter()?;
        let mut filter = Expr::Filter(None, name, arguments);
        for _ in 0..LONGEST {
            if !self.skip_op("|") {
                return Ok(filter);
            }
            let (name, arguments) = self.filter()?;
            filter = Expr::Filter(Some(Box::new(filter)), name, arguments);
        }
        self.fail("too many filters in one expression")
    }

    fn test(&mut self, value: Expr) -> Result<Expr, Error> {
        let negated = self.skip_name("not");
        let name = self.dotted()?;
        if !is_test(&name) {
            self.not_known("test", &name);
        }
        let begins = match self.peek() {
            Token::Name(word) if &**word == "is" => {
                return self.fail("You cannot chain multiple tests with is");
            }
            Token::Name(word) => !matches!(&**word, "else" | "or" | "and"),
            Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Op("[" | "{") => true,
            _ => false,
        };
        let mut arguments = Arguments::default();
        if self.is_op("(") {
            arguments = self.arguments()?;
        } else if begins {
            let mut argument = self.nested(Self::primary)?;
            for _ in 0..LONGEST {
                argument = if self.is_op(".") || self.is_op("[") {
                    self.subscript(argument)?
                } else if self.is_op("(") {
                    Expr::Call(Box::new(argument), self.arguments()?)
                } else {
                    break;
                };
            }
            arguments.positional.push(argument);
        }
        let test = Expr::Test(Box::new(value), name, arguments);
        Ok(match negated {
            true => Expr::Not(Box::new(test)),
            false => test,
        })
    }

    fn dotted(&mut self) -> Result<Name, Error> {
        let mut name = self.expect_name()?;
        while self.skip_op(".") {
            name = format!("{name}.{}", self.expect_name()?).into();
        }
        Ok(name)
    }
}

fn single_or(mut parts: Vec<Expr>, many: fn(Vec<Expr>) -> Expr) -> Expr {
    match parts.pop() {
        Some(single) if parts.is_empty() => single,
        last => {
            parts.extend(last);
            many(parts)
        }
    }
}
