use std::fmt;

use penstock_wire::{Stage, StepStats};

/// Receives every stage of every start and every step, in order: [`crate::EngineState`] and
/// [`crate::Engine::stats`] may skip some. Called by the task that reads the engine's connection,
/// so it must not wait.
pub trait Observer: fmt::Debug + Send + Sync {
    /// A stage of the engine's start has ended.
    fn stage(&self, _stage: &Stage) {}

    /// A step has ended, or an idle engine has shown that it lives: then `batch_tokens` is 0.
    fn step(&self, _stats: &StepStats) {}
}

/// Ignores everything.
impl Observer for () {}
