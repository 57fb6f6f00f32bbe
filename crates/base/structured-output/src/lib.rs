//! Structured output: compiles JSON schemas, regular expressions, choices, context-free grammars
//! and structural tags to token masks, using the crate `llguidance`.
//!
//! The API server compiles a grammar to report its errors; the engine's sampler compiles it to
//! apply it. Both use the same [`Vocabulary`]. A feature that llguidance does not support is an
//! error that names the feature. A [`Matcher`] belongs to one sequence; [`Grammars`] computes masks
//! in the background while the model runs. Requests, slots and logits are outside this crate.

mod compiler;
mod error;
mod gbnf;
mod lark;
mod lexer;
mod mask;
mod masks;
mod matcher;
mod schema;
mod tags;
mod trial;
mod vocabulary;

pub use compiler::{Compiled, Compiler};
pub use error::{GrammarError, MatchError};
pub use mask::Mask;
pub use masks::{Constraint, Grammars, RowMask};
pub use matcher::Matcher;
pub use trial::{is_small, run_trial, trial_job, trial_verdict};
pub use vocabulary::Vocabulary;
