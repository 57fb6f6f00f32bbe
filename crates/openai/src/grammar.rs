//! What an output must match.

use penstock_wire::Grammar;

/// A grammar, and the field of the request that asked for it: errors name that field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputGrammar {
    pub field: &'static str,
    pub grammar: Grammar,
}
