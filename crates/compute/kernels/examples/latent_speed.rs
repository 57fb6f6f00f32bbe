//! Latency of one layer's decode attention: absorbed latent attention beside the same heads with
//! separate keys and values. Prints JSON lines.
//!
//! `latent_speed HEADS CONTEXT ROWS [threads [isa]]`

mod noise;

use std::time::Instant;

use noise::Noise;
use penstock_kernels::{
    ActivationFormat, Activations, Angles, AttentionPlan, Cpu, HeadColumns, HeadShape, Isa,
    KvLayout, KvPool, KvType, Latent, LatentRows, Norm, NormKind, Packed, Place, Rotation,
    RowSource, Scoring, Seen, Sequence, SequenceBlocks, StepLease, WeightFormat,
};

/// DeepSeek's head sizes: without and with rotation, of a value, and of the latent.
const PLAIN: usize = 128;
const ROPE: usize = 64;
const VALUE: usize = 128;
const RANK: usize = 512;
const KEY: usize = RANK + ROPE;
/// Layers to cycle through, so that keys come from memory and not from a cache.
const LAYERS: usize = 8;
const BLOCK: usize = 64;
const TIMED_S: f64 = 2.0;

fn noise(len: usize) -> Vec<f32> {
    let mut out = vec![0.0; len];
    Noise.fill_f32(len, &mut out);
    out
}

/// Decodes of several sequences, each with its own context.
struct Batch {
    cpu: Cpu,
    heads: usize,
    rows: usize,
    context: usize,
}

impl Batch {
    fn pool(&self, kv_heads: usize, head_dim: usize, latent: Option<usize>) -> KvPool {
        let layout = KvLayout {
            layers: LAYERS,
            kv_heads,
            head_dim,
            latent,
            block_size: BLOCK,
            dtype: KvType::Bf16,
        };
        KvPool::new(layout, self.rows * self.context.div_ceil(BLOCK))
    }

    fn lease<'p>(&self, pool: &'p mut KvPool) -> StepLease<'p> {
        let blocks = self.context.div_ceil(BLOCK);
        let sequence = |row: usize| {
            let table: Vec<i32> = (row * blocks..(row + 1) * blocks)
                .map(|b| b as i32)
                .collect();
            SequenceBlocks {
                seen: 0..blocks,
                writes_from: 0,
                table: table.into(),
            }
        };
        match pool.lease((0..self.rows).map(sequence).collect()) {
            Ok(lease) => lease,
            Err(busy) => unreachable!("no transfers use the pool: {busy}"),
        }
    }

    fn place(&self, row: usize, position: usize) -> Place {
        Place {
            block: row * self.context.div_ceil(BLOCK) + position / BLOCK,
            offset: position % BLOCK,
        }
    }

    fn plan(&self, shape: HeadShape) -> AttentionPlan {
        let sequence = |row| Sequence {
            start: self.context - 1,
            rows: row..row + 1,
        };
        let sequences = (0..self.rows).map(sequence).collect();
        AttentionPlan::new(sequences, shape, self.cpu.threads().count())
    }

    /// Mean seconds per layer, best of several rounds.
    fn best(&self, mut layer: impl FnMut(usize)) -> f64 {
        let (mut best, began) = (f64::MAX, Instant::now());
        while began.elapsed().as_secs_f64() < TIMED_S {
            let start = Instant::now();
            (0..LAYERS).for_each(&mut layer);
            best = best.min(start.elapsed().as_secs_f64() / LAYERS as f64);
        }
        best
    }

    /// Attention with separate keys and values for each head.
    fn unabsorbed(&self) -> f64 {
        let (head, width) = (PLAIN + ROPE, 3 * self.heads * (PLAIN + ROPE));
        let mut pool = self.pool(self.heads, head, None);
        let mut kv = self.lease(&mut pool);
        let store = |kv: &mut StepLease<'_>, positions: &[usize], layer: usize| {
            let rows = positions.iter().enumerate();
            let places: Vec<Place> = rows.map(|(i, &p)| self.place(i % self.rows, p)).collect();
            let mut qkv = noise(width * places.len());
            let rotation = Rotation::default();
            self.cpu
                .rotate_and_store(&mut qkv, self.heads, &rotation, &places, layer, kv);
            qkv
        };
        for position in 0..self.context {
            (0..LAYERS).for_each(|layer| drop(store(&mut kv, &vec![position; self.rows], layer)));
        }
        let qkv = noise(width * self.rows);
        let shape = HeadShape::whole(self.heads, self.heads, head);
        let (mut plan, row) = (self.plan(shape), self.heads * head);
        let mut out = vec![0.0; self.rows * row];
        self.best(|layer| {
            let out = HeadColumns {
                rows: &mut out,
                row,
                head,
                first: 0,
            };
            plan.run(&self.cpu, &kv, layer, SCORING, &qkv, width, out);
        })
    }

    /// Attention over one latent and rope key per token. The time includes the projections of
    /// queries into the latent space and of sums back.
    fn absorbed(&self, form: WeightFormat) -> f64 {
        let (cpu, heads, rows) = (&self.cpu, self.heads, self.rows);
        let shape = Latent {
            heads,
            plain: PLAIN,
            rope: ROPE,
            rank: RANK,
        };
        let norm = Norm {
            kind: NormKind::Rms,
            weight: vec![1.0; RANK],
            bias: None,
            eps: 1e-6,
        };
        let mut pool = self.pool(1, KEY, Some(RANK));
        let mut kv = self.lease(&mut pool);
        let cos_sin = vec![0.7; rows * ROPE];
        let angles = Angles {
            cos_sin: &cos_sin,
            dims: ROPE,
        };
        let (queries, width) = (noise(rows * heads * (PLAIN + ROPE)), heads * (PLAIN + ROPE));
        let latents = noise(rows * KEY);
        let from = LatentRows {
            queries: (&queries, width),
            latents: (&latents, KEY),
        };
        let mut plain = vec![0.0; heads * rows * PLAIN];
        let mut absorbed = vec![0.0; rows * heads * KEY];
        let part = |kv: &mut StepLease<'_>, at: usize, layer, plain: &mut _, absorbed: &mut _| {
            let places: Vec<Place> = (0..rows).map(|row| self.place(row, at)).collect();
            let angles = Some(angles);
            cpu.part_latent(
                &shape, from, &norm, angles, &places, layer, kv, plain, absorbed,
            );
        };
        for at in 0..self.context {
            for layer in 0..LAYERS {
                part(&mut kv, at, layer, &mut plain, &mut absorbed);
            }
        }
        let pack = |n, k| Packed::pack(cpu.threads(), form, n, k, &Noise);
        let matrices = |n, k| (0..heads).map(|_| pack(n, k)).collect::<Vec<_>>();
        let made: Vec<_> = (0..LAYERS)
            .map(|_| (matrices(RANK, PLAIN), matrices(VALUE, RANK)))
            .collect();
        let shape = HeadShape {
            value_dim: RANK,
            ..HeadShape::whole(heads, 1, KEY)
        };
        let (mut plan, mut acts) = (self.plan(shape), Activations::default());
        let mut context = vec![0.0; heads * rows * RANK];
        let mut out = vec![0.0; rows * heads * VALUE];
        let form = ActivationFormat::of(form);
        self.best(|layer| {
            let at = self.context - 1;
            part(&mut kv, at, layer, &mut plain, &mut absorbed);
            let (keys, values) = &made[layer];
            cpu.norm_quantize(&plain, heads * rows, PLAIN, None, form, &mut acts);
            cpu.head_products(keys, &acts, columns(&mut absorbed, heads * KEY, KEY));
            let latents = columns(&mut context, RANK, rows * RANK);
            plan.run(cpu, &kv, layer, SCORING, &absorbed, heads * KEY, latents);
            cpu.norm_quantize(&context, heads * rows, RANK, None, form, &mut acts);
            cpu.head_products(values, &acts, columns(&mut out, heads * VALUE, VALUE));
        })
    }
}

fn columns(rows: &mut [f32], row: usize, head: usize) -> HeadColumns<'_> {
    HeadColumns {
        rows,
        row,
        head,
        first: 0,
    }
}

const SCORING: Scoring<'static> = Scoring {
    seen: Seen::All,
    scale: 0.07,
    softcap: None,
    sinks: None,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| match args.get(i) {
        Some(text) => text.parse::<usize>(),
        None => Ok(default),
    };
    let isa = match args.get(4) {
        Some(name) => name.parse()?,
        None => Isa::detect(),
    };
    let batch = Batch {
        heads: number(0, 16)?,
        context: number(1, 4096)?,
        rows: number(2, 1)?,
        cpu: Cpu::new(isa, number(3, 2)?)?,
    };
    let (heads, rows, context) = (batch.heads, batch.rows, batch.context);
    let kept = [2 * heads * (PLAIN + ROPE), KEY].map(|numbers| 2 * numbers);
    let times = [
        ("own keys and values", batch.unabsorbed(), kept[0]),
        ("latent, w8", batch.absorbed(WeightFormat::W8), kept[1]),
        ("latent, bf16", batch.absorbed(WeightFormat::Bf16), kept[1]),
    ];
    for (form, seconds, bytes) in times {
        println!(
            "{{\"form\": \"{form}\", \"heads\": {heads}, \"rows\": {rows}, \"context\": {context}, \
             \"microseconds\": {:.1}, \"kv_bytes\": {bytes}}}",
            seconds * 1e6
        );
    }
    Ok(())
}
