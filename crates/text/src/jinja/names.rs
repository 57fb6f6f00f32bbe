//! Names of the functions, filters and tests.

/// What templates call by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    RaiseException,
    StrftimeNow,
}

impl Function {
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "range" => Self::Range,
            "dict" => Self::Dict,
            "namespace" => Self::Namespace,
            "cycler" => Self::Cycler,
            "joiner" => Self::Joiner,
            "raise_exception" => Self::RaiseException,
            "strftime_now" => Self::StrftimeNow,
            _ => return None,
        })
    }
}

/// Filters of one value.
const FILTERS: [&str; 34] = [
    "abs",
    "attr",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "e",
    "escape",
    "filesizeformat",
    "float",
    "forceescape",
    "format",
    "indent",
    "int",
    "items",
    "length",
    "list",
    "lower",
    "replace",
    "reverse",
    "round",
    "safe",
    "string",
    "striptags",
    "title",
    "tojson",
    "trim",
    "truncate",
    "upper",
    "urlencode",
    "wordcount",
    "join",
    "sum",
];
/// Filters of many values.
const FILTERS_OF_LISTS: [&str; 15] = [
    "batch",
    "dictsort",
    "first",
    "groupby",
    "last",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "select",
    "selectattr",
    "slice",
    "sort",
    "unique",
];
/// Tests with names; signs of comparisons are tests only for `select` and the like.
const TESTS: [&str; 32] = [
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "upper",
];

/// Whether a filter of one value has the name.
pub(super) fn is_filter_of_one(name: &str) -> bool {
    FILTERS.contains(&name)
}

pub(super) fn is_filter(name: &str) -> bool {
    is_filter_of_one(name) || FILTERS_OF_LISTS.contains(&name)
}

pub(super) fn is_test(name: &str) -> bool {
    name == "undefined" || TESTS.contains(&name)
}
