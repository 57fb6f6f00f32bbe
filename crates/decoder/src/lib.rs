//! The CPU decoder: a [`DecoderSpec`], packed weights and a step plan in, tokens out.
//!
//! It owns the weights, the KV pool and the threads; it knows nothing of requests, text or
//! scheduling. Plans are checked against its limits before anything is computed.

mod collectives;
mod decoder;
mod error;
mod forward;
mod load;
mod logits;
mod model;
mod options;
mod recipe;
mod rope;
mod shard;
mod source;
mod spec;
mod step;
mod wiring;

pub use collectives::{After, Alone, Before, Collectives, Local};
pub use decoder::{Decoder, Info, KvShare, Ticket};
pub use error::DecoderError;
pub use model::KvGroup;
pub use options::{Numerics, Options, RawOptions};
pub use recipe::{LayerRecipes, Recipe, WeightRecipes};
pub use shard::Shard;
pub use spec::{
    Activation, AttentionSpec, DecoderSpec, ExpertsSpec, FeedForward, LatentSpec, LayerSpec, Mixer,
    MlpSpec, NormKind, NormSpec, Norms, RopeScaling, RopeSpec,
};
pub use step::{Registration, StepOutput, StepPlan};
pub use wiring::{Carried, GroupFile, Pipe, Wiring, join};
