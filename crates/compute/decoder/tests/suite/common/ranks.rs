//! The ranks of one decoder as threads of the test process, over real shared memory.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use penstock_checkpoint::ReadCount;
use penstock_collectives::{Fence, Group, Writer};
use penstock_decoder::{
    Carried, Decoder, DecoderError, DecoderSpec, GroupWiring, Options, Pipe, Shard, StepFuture,
    Wiring, join,
};
use penstock_wire::StepResult;

use super::{BLOCKS, Compute, Scratch, allocated, checkpoint, finish, spec};

const PATIENCE: Duration = Duration::from_secs(300);
const SLOTS: usize = 4;

/// Partition of a decoder.
#[derive(Clone, Debug)]
pub(crate) struct Cuts {
    pub(crate) layers: Vec<usize>,
    pub(crate) heads: Vec<usize>,
    /// One list per inner width.
    pub(crate) mlp: Vec<Vec<usize>>,
    pub(crate) experts: Option<Vec<usize>>,
    pub(crate) vocab: Vec<usize>,
}

impl Cuts {
    /// A partition as even as possible.
    pub(crate) fn even(spec: &DecoderSpec, tp: usize, pp: usize) -> Self {
        let cut = |whole: usize, parts: usize| (0..=parts).map(|i| i * whole / parts).collect();
        Self {
            layers: cut(spec.depth(), pp),
            heads: cut(spec.heads().heads, tp),
            mlp: spec.widths().into_iter().map(|w| cut(w, tp)).collect(),
            experts: None,
            vocab: cut(spec.vocab, tp),
        }
    }

    /// The same partition with whole experts on each rank.
    pub(crate) fn by_experts(self, spec: &DecoderSpec) -> Self {
        let (experts, tp) = (spec.experts().unwrap(), self.tp());
        let cuts = (0..=tp).map(|i| i * experts / tp).collect();
        Self {
            experts: Some(cuts),
            ..self
        }
    }

    fn tp(&self) -> usize {
        self.heads.len() - 1
    }

    fn pp(&self) -> usize {
        self.layers.len() - 1
    }
}

/// All ranks, stage by stage.
pub(crate) struct Ranks {
    pub(crate) decoders: Vec<Decoder>,
    tp: usize,
    files: Scratch,
}

impl Ranks {
    /// Ends all waits, as the supervisor does when a rank is lost.
    pub(crate) fn end(&self, reason: &str) {
        for file in std::fs::read_dir(self.files.path()).unwrap() {
            Fence::open(&file.unwrap().path()).unwrap().end(reason);
        }
    }
}

impl Compute for Ranks {
    fn decoders(&self) -> Vec<&Decoder> {
        self.decoders.iter().collect()
    }

    fn finish(&self, futures: Vec<StepFuture>) -> Result<StepResult, DecoderError> {
        let mut results = futures.iter().map(finish).collect::<Result<Vec<_>, _>>()?;
        let reader = results.len() - self.tp;
        let result = results.swap_remove(reader);
        assert!(
            results.iter().all(|r| r.tokens.is_empty()),
            "one rank draws tokens"
        );
        Ok(result)
    }
}

/// Connections between stages. `Stream` is also used within a stage; the others use shared memory
/// there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Ring,
    Stream,
    Carried,
}

/// Forwards messages from each stage's caller to the next stage.
fn carry(ends: Vec<Carried>, tp: usize) {
    let (mut befores, afters): (Vec<_>, Vec<_>) =
        ends.into_iter().map(|c| (c.before, c.after)).unzip();
    befores.drain(..tp);
    for (after, before) in afters.into_iter().zip(befores) {
        if let (Some(after), Some(before)) = (after, before) {
            std::thread::spawn(move || after.into_iter().try_for_each(|x| before.send(x)));
        }
    }
}

/// Loads every rank of the tiny checkpoint `name`.
pub(crate) fn load_ranks(name: &str, options: &Options, cuts: &Cuts) -> Ranks {
    load_ranks_by(Way::Ring, name, options, cuts)
}

/// Like [`load_ranks`], with the given connections between stages.
pub(crate) fn load_ranks_by(way: Way, name: &str, options: &Options, cuts: &Cuts) -> Ranks {
    let (spec_json, names) = spec(name);
    let parse = || DecoderSpec::parse(&spec_json.to_string()).unwrap();
    load_cut(
        way,
        &parse,
        &names.to_string(),
        checkpoint(name),
        options,
        cuts,
    )
}

/// A free loopback address.
pub(crate) fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Loads every rank of a checkpoint.
pub(crate) fn load_cut(
    way: Way,
    spec: &dyn Fn() -> DecoderSpec,
    names: &str,
    path: PathBuf,
    options: &Options,
    cuts: &Cuts,
) -> Ranks {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let files = Scratch::new(&format!("ranks-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    let (tp, pp, hidden) = (cuts.tp(), cuts.pp(), spec().hidden);
    let widest = cuts
        .vocab
        .windows(2)
        .map(|w| w[1] - w[0])
        .max()
        .unwrap_or(0);
    let capacity = (options.max_batched_tokens * hidden).max(32 * widest);
    let bytes = options.max_batched_tokens * hidden * 4;
    let group = |stage: usize| files.path().join(format!("group-{stage}"));
    let pipe = |stage: usize, rank: usize| files.path().join(format!("pipe-{stage}-{rank}"));
    for stage in 0..pp {
        Group::create(&group(stage), tp, capacity).unwrap();
        for rank in 0..tp {
            Writer::create(&pipe(stage, rank), 1, SLOTS, bytes).unwrap();
        }
    }
    let open = |(stage, rank): (usize, usize)| match way {
        Way::Ring => Pipe::Ring {
            path: pipe(stage, rank),
            slots: SLOTS,
            capacity: bytes,
        },
        Way::Stream => Pipe::Stream {
            address: free_address(),
            key: "5a".repeat(32),
            capacity: bytes,
        },
        Way::Carried => Pipe::Carried,
    };
    let all = (0..pp).flat_map(|stage| (0..tp).map(move |rank| (stage, rank)));
    let ways: Vec<Pipe> = all.map(open).collect();
    let middles: Vec<SocketAddr> = (0..pp).map(|_| free_address()).collect();
    let wiring = |stage: usize, rank: usize| Wiring {
        group: (tp > 1).then(|| match way {
            Way::Stream => GroupWiring::Stream {
                address: middles[stage],
                key: "5a".repeat(32),
                rank,
                ranks: tp,
                capacity,
            },
            Way::Ring | Way::Carried => GroupWiring::Memory {
                path: group(stage),
                rank,
                ranks: tp,
                capacity,
            },
        }),
        before: (stage > 0).then(|| ways[(stage - 1) * tp + rank].clone()),
        after: (stage + 1 < pp).then(|| ways[stage * tp + rank].clone()),
        patience_s: PATIENCE.as_secs_f64(),
    };
    let mut ends: Vec<Carried> = Vec::new();
    let mut load = |(stage, rank): (usize, usize)| {
        let (local, carried) = join(&wiring(stage, rank)).unwrap();
        ends.push(carried);
        let shard = Shard {
            rank,
            stage: [stage, pp],
            layers: [cuts.layers[stage], cuts.layers[stage + 1]],
            heads: cuts.heads.clone(),
            mlp: cuts.mlp.clone(),
            experts: cuts.experts.clone(),
            vocab: cuts.vocab.clone(),
        };
        let (local, count) = (Box::new(local), ReadCount::default());
        let decoder = Decoder::load_shard(spec(), names, &path, options, shard, local, &count);
        allocated(decoder.unwrap(), BLOCKS)
    };
    let places = (0..pp).flat_map(|stage| (0..tp).map(move |rank| (stage, rank)));
    let decoders: Vec<Decoder> = places.map(&mut load).collect();
    carry(ends, tp);
    Ranks {
        decoders,
        tp,
        files,
    }
}
