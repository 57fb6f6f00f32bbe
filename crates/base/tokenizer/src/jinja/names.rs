//! Names of the functions, filters and tests.

/// Global functions of every template.
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

/// Filters of a single value.
const FILTERS: [&str; 31] = [
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
];
/// Filters of sequences.
const FILTERS_OF_LISTS: [&str; 18] = [
    "batch",
    "dictsort",
    "first",
    "groupby",
    "join",
    "last",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "slice",
    "sort",
    "sum",
    "unique",
];
/// Named tests. Operators such as `==` are tests only in `select` and similar filters.
const TESTS: [&str; 33] = [
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
    "undefined",
    "upper",
];

/// Whether a filter of a single value has this name.
pub(super) fn is_filter_of_one(name: &str) -> bool {
    FILTERS.contains(&name)
}

pub(super) fn is_filter(name: &str) -> bool {
    is_filter_of_one(name) || FILTERS_OF_LISTS.contains(&name)
}

pub(super) fn is_test(name: &str) -> bool {
    TESTS.contains(&name)
}
