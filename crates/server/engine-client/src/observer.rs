use std::fmt;

use penstock_wire::{Stage, StepStats};

/// Receives all stages and steps in order. In contrast, [`crate::EngineState`] and
/// [`crate::Engine::stats`] may skip some. Runs on the task that reads the engine's connection, so
/// it must not block.
pub trait Observer: fmt::Debug + Send + Sync {
    /// A stage of the engine's start has ended.
    fn stage(&self, _stage: &Stage) {}

    /// A step has ended, or an idle engine has sent a heartbeat (`batch_tokens` is then 0).
    fn step(&self, _stats: &StepStats) {}
}

/// Ignores everything.
impl Observer for () {}
