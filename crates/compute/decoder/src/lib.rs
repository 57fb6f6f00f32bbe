//! The CPU decoder: a [`DecoderSpec`], packed weights and a step plan in, tokens out.
//!
//! The crate owns the weights, the KV pools and the threads; requests, text and scheduling are
//! handled by its callers. A plan is checked against the decoder's limits before any computation.

mod block_scales;
mod buffers;
mod collectives;
mod decoder;
mod error;
mod feed_forward;
mod forward;
mod head_rows;
mod interleaved;
mod latent;
mod le_bytes;
mod load;
mod loaded;
mod logits;
mod model;
mod options;
mod peers;
mod pooled;
mod pooling;
mod recipe;
mod results;
mod rope;
mod rows;
mod runner;
mod sampler;
mod shard;
mod slots;
mod source;
mod spec;
mod step;
mod thread;
mod wiring;

pub use collectives::{After, Alone, Before, Collectives, Joined};
pub use decoder::Decoder;
pub use error::{DecoderError, ValueLocation};
pub use loaded::{Info, KvGroupSpec, KvShare, KvSpec, Stage};
pub use logits::HEAD_ROWS;
pub use options::{Numerics, Options, RawOptions};
pub use peers::Peers;
pub use recipe::{LayerRecipes, Recipe, WeightRecipes};
pub use shard::Shard;
pub use spec::{
    Activation, AttentionSpec, ClampSpec, ConvolutionSpec, DecoderSpec, ExpertsSpec, FeedForward,
    GroupScore, GroupsSpec, Heads, LatentSpec, LayerSpec, Mixer, MlpSpec, NormKind, NormSpec,
    Norms, RopeScaling, RopeSpec, RouterSpec, ScoreSpec,
};
pub use thread::StepFuture;
pub use wiring::{Carried, GroupWiring, Pipe, Wiring, join};
