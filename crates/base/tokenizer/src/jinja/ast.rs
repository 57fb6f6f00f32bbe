//! The syntax tree of a template.

use std::sync::Arc;

pub(super) type Name = Arc<str>;

#[derive(Debug)]
pub(super) enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    Name(Name),
    Tuple(Vec<Expr>),
    List(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    /// `a ~ b ~ c`
    Concat(Vec<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    /// Operators of equal precedence, left-associative.
    Chain(Box<Expr>, Vec<(Operator, Expr)>),
    /// `a < b < c`
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    /// `then if test else otherwise`
    Condition(Box<[Expr; 2]>, Option<Box<Expr>>),
    Attribute(Box<Expr>, Name),
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<[Option<Expr>; 3]>),
    Call(Box<Expr>, Arguments),
    /// A filter; in a filter block, the innermost one has no value.
    Filter(Option<Box<Expr>>, Name, Arguments),
    Test(Box<Expr>, Name, Arguments),
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(Name, Expr)>,
    /// `*rest`
    pub(super) rest: Option<Box<Expr>>,
    /// `**rest`
    pub(super) named_rest: Option<Box<Expr>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}

/// Target of an assignment.
#[derive(Debug)]
pub(super) enum Target {
    Name(Name),
    /// `namespace.attribute`
    Member(Name, Name),
    Tuple(Vec<Target>),
}

pub(super) type Body = Vec<(Node, u32)>;

#[derive(Debug)]
pub(super) enum Node {
    Text(Arc<str>),
    Print(Vec<Expr>),
    For(Arc<For>),
    If(Vec<(Expr, Body)>, Body),
    Set(Target, Expr),
    SetBlock(Target, Option<Expr>, Body),
    Macro(Arc<Macro>),
    Call(Arc<Macro>, Expr),
    Filter(Expr, Body),
    With(Vec<(Target, Expr)>, Body),
    /// A body with its own scope.
    Scope(Body),
    Do(Expr),
    Break,
    Continue,
    /// A statement that loads another template.
    Loads(&'static str),
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) values: Expr,
    pub(super) condition: Option<Expr>,
    pub(super) recursive: bool,
    pub(super) body: Body,
    pub(super) otherwise: Body,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Name,
    pub(super) parameters: Vec<Name>,
    /// Defaults of the last parameters; never more than there are parameters.
    pub(super) defaults: Vec<Expr>,
    pub(super) body: Body,
    /// Which of `caller`, `varargs` and `kwargs` the body reads.
    pub(super) reads: Implicit,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Implicit {
    pub(super) caller: bool,
    pub(super) varargs: bool,
    pub(super) kwargs: bool,
}
