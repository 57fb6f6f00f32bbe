//! Grammars that constrain an output: JSON schemas, regular expressions, choices, context-free
//! grammars and structural tags to masks of tokens, by the crate `llguidance`.
//!
//! The front door compiles a grammar to find what is wrong with it, the sampler to follow it; both
//! have the same [`Vocabulary`]. What llguidance cannot honour is an error that names it. A
//! [`Matcher`] belongs to one sequence; [`Grammars`] has the masks of sequences computed while a
//! model computes. Requests, slots and logits are outside of this crate.

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
