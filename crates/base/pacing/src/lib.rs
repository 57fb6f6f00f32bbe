//! Chunked prefill beside decodes: how many prompt tokens a step takes, from the measured times of
//! earlier steps. The scheduler, the simulated engine and the planner's replica use this one rule.
//! No clock and no IO.
//!
//! A step's time is modelled as `decodes(n) + prompts(p)`. Both are curves through measured sizes,
//! so a fixed cost (kernel launches), a cost that is hidden behind another (launches behind a long
//! step) and a cost that falls with size (experts) need no model of their own.

mod budget;
mod curve;

pub use budget::PromptBudget;
