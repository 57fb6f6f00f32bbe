//! Loading: packs a checkpoint's weights, and collects facts about them before KV allocation.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use penstock_checkpoint::{Checkpoint, ReadAhead, ReadCount};
use penstock_kernels::{AttentionMask, Cpu, Isa, KvLayout, KvType, Packed};

use crate::collectives::Collectives;
use crate::error::DecoderError;
use crate::load::{add_in_order, kv_groups};
use crate::model::{KvGroup, Model};
use crate::options::Options;
use crate::recipe::WeightRecipes;
use crate::shard::Shard;
use crate::spec::DecoderSpec;

/// Packing threads per reader thread. Together, this many packing threads consume data about as
/// fast as one thread reads it from the page cache.
const THREADS_OF_A_READER: usize = 16;

/// Facts about a loaded decoder.
#[derive(Clone, Debug)]
pub struct Info {
    /// Weight formats, activation format and KV type, for example `w4+w8/int8/kv-bf16`. Part of the
    /// cache identity: decoders with different numerics never share cached keys and values.
    pub numerics: String,
    /// Instruction set in use.
    pub isa: Isa,
    /// Compute threads.
    pub threads: usize,
    /// Fingerprint of the checkpoint.
    pub fingerprint: [u8; 32],
    /// Size of the packed weights in bytes.
    pub weights_bytes: usize,
    /// This rank's part of the model's keys and values.
    pub kv: KvShare,
}

/// A stage of the start-up: name, duration in seconds, detail.
pub type Stage = (String, f64, String);

/// A rank's part of the model's keys and values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvShare {
    /// For each KV group, this rank's range in the list of all layers, where the list is sorted by
    /// KV group.
    pub layers: Vec<Range<usize>>,
    /// Indices of the KV heads in the whole model, in the order in which a block stores them.
    pub heads: Range<usize>,
    /// Number of layers of the whole model that have keys and values.
    pub all_layers: usize,
    /// Number of KV heads of the whole model.
    pub all_heads: usize,
    /// Layout of a pool of one layer. The pools of the KV groups differ from it in `layers` only.
    pub layout: KvLayout,
}

/// Layout of the KV blocks on this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvSpec {
    /// Tokens per block.
    pub block_size: usize,
    /// The KV groups, equal on every rank except for `layers` and `block_bytes`.
    pub groups: Vec<KvGroupSpec>,
}

/// A KV group: layers that share block tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroupSpec {
    /// This rank's layers in the group, as indices into the whole model; may be empty.
    pub layers: Vec<usize>,
    /// Bytes per block of the group on this rank.
    pub block_bytes: usize,
    /// The attention mask.
    pub seen: AttentionMask,
}

/// A loaded model, which can compute once its KV pools are allocated.
pub(crate) struct Loaded {
    pub(crate) cpu: Cpu,
    pub(crate) model: Model,
    pub(crate) options: Options,
    pub(crate) collectives: Box<dyn Collectives>,
    /// Path of the checkpoint; grammars use its tokenizer.
    pub(crate) path: PathBuf,
}

impl Loaded {
    /// Opens the checkpoint at `path` and packs this rank's part of its weights.
    pub(crate) fn open(
        spec: DecoderSpec,
        weights: &WeightRecipes,
        path: &Path,
        options: &Options,
        shard: Shard,
        collectives: Box<dyn Collectives>,
        count: &ReadCount,
    ) -> Result<(Self, Info, Vec<Stage>), DecoderError> {
        let options = *options;
        let cpu = Cpu::new(options.isa, options.threads)?;
        let began = Instant::now();
        let checkpoint = Checkpoint::open(path)?;
        let tensors = format!("{} tensors", checkpoint.names().count());
        let read = stage("model read", began, tensors);
        let began = Instant::now();
        let mut tensors = ReadAhead::new(&checkpoint, count);
        add_in_order(&mut tensors, &spec, weights, &shard);
        let readers = 1 + cpu.threads().count() / THREADS_OF_A_READER;
        let load = || Model::load(&cpu, &tensors, spec, weights, options.numerics, shard);
        let model = tensors.run(readers, load)?;
        // The fingerprint samples the file's pages. After the load they are in the page cache, so
        // the disk need not seek.
        let fingerprint = checkpoint.fingerprint()?;
        drop(checkpoint);
        let matrices = model.matrices().chain(model.routers());
        let weights_bytes = matrices.map(Packed::bytes).sum();
        let forms = forms(&model);
        let (isa, threads) = (options.isa, options.threads);
        let packed = format!(
            "{} as {forms}, {isa} on {threads} threads",
            mib(weights_bytes)
        );
        let packed = stage("weights packed", began, packed);
        let info = Info {
            numerics: format!("{forms}/kv-{}", kv_name(options.kv)),
            isa,
            threads,
            fingerprint,
            weights_bytes,
            kv: share(&model, &options),
        };
        let loaded = Self {
            cpu,
            model,
            options,
            collectives,
            path: path.to_owned(),
        };
        Ok((loaded, info, vec![read, packed]))
    }

    /// Pool layout of a KV group.
    pub(crate) fn layout(&self, group: &KvGroup) -> KvLayout {
        layout(&self.model, &self.options, group.layers.len())
    }

    pub(crate) fn kv_spec(&self) -> KvSpec {
        let group = |group: &KvGroup| KvGroupSpec {
            layers: group.layers.clone(),
            block_bytes: self.layout(group).block_bytes(),
            seen: group.seen,
        };
        KvSpec {
            block_size: self.options.block_size,
            groups: self.model.kv_groups().iter().map(group).collect(),
        }
    }
}

pub(crate) fn stage(name: &str, began: Instant, detail: String) -> Stage {
    (name.to_owned(), began.elapsed().as_secs_f64(), detail)
}

pub(crate) fn mib(bytes: usize) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

pub(crate) fn kv_name(kv: KvType) -> &'static str {
    match kv {
        KvType::F32 => "f32",
        KvType::Bf16 => "bf16",
    }
}

fn layout(model: &Model, options: &Options, layers: usize) -> KvLayout {
    KvLayout {
        layers,
        kv_heads: model.heads.kv_heads(),
        head_dim: model.heads.head_dim,
        latent: model.spec.heads().latent,
        block_size: options.block_size,
        dtype: options.kv,
    }
}

fn share(model: &Model, options: &Options) -> KvShare {
    let Model { spec, shard, .. } = model;
    let (own, mut before) = (shard.layers(), 0);
    let layers = kv_groups(spec, 0..spec.depth()).into_iter().map(|group| {
        let at = |layer| before + group.layers.partition_point(|&other| other < layer);
        let share = at(own.start)..at(own.end);
        before += group.layers.len();
        share
    });
    KvShare {
        layers: layers.collect(),
        heads: shard.kv_heads(spec),
        all_layers: before,
        all_heads: spec.heads().kv_heads,
        layout: layout(model, options, 1),
    }
}

/// Weight formats in use with their activation format: `w4+w8/int8`.
fn forms(model: &Model) -> String {
    let mut names: Vec<&str> = model.matrices().map(|m| m.form().name()).collect();
    names.sort_unstable();
    names.dedup();
    let rounded = names.iter().any(|&name| name != "f32" && name != "bf16");
    let activations = if rounded {
        "int8"
    } else {
        // A middle stage without layers has no weights.
        names.first().copied().unwrap_or("none")
    };
    format!("{}/{activations}", names.join("+"))
}
