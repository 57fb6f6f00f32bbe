//! Budget of prompt tokens for steps that also decode (chunked prefill), learnt from the measured
//! times of earlier steps. The scheduler, the simulated engine and the planner's replica share this
//! implementation. It reads no clock and does no IO.
//!
//! A step's time is modelled as `decodes(n) + prompts(p)`. Both are curves through measured sizes.
//! Therefore no separate model is needed for a fixed cost (kernel launches), a cost hidden behind
//! another (launches behind a long step), or a cost that decreases with size (experts).

mod budget;
mod curve;

pub use budget::PromptBudget;
