//! A minimal decoder of attention only, which processes texts step by step.
#![allow(clippy::unwrap_used)]

use penstock_kernels::{
    AttentionMask, AttentionPlan, Cpu, HeadColumns, HeadShape, Isa, KvLayout, KvPool, KvPosition,
    KvType, Rotation, Scoring, Sequence, SequenceBlocks,
};

use super::super::common::{Rng, bits, uses};

/// A sequence: projected rows (queries, keys, values side by side) of all its positions.
pub(crate) struct Text {
    pub(crate) shape: HeadShape,
    pub(crate) rows: Vec<f32>,
}

impl Text {
    pub(crate) fn random(rng: &mut Rng, shape: HeadShape, len: usize) -> Self {
        let rows = rng.vec(len * width(&shape), 2.0);
        Self { shape, rows }
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len() / width(&self.shape)
    }

    pub(crate) fn rows(&self, range: std::ops::Range<usize>) -> &[f32] {
        let width = width(&self.shape);
        &self.rows[range.start * width..range.end * width]
    }

    /// The query (`part` = 0), key (1) or value (2) of a head at a position.
    pub(crate) fn head(&self, position: usize, part: usize, head: usize) -> &[f32] {
        let s = &self.shape;
        let before = [0, s.heads, s.heads + s.kv_heads()][part];
        let at = (before + head) * s.head_dim;
        &self.rows(position..position + 1)[at..at + s.head_dim]
    }
}

pub(crate) fn width(s: &HeadShape) -> usize {
    (s.heads + 2 * s.kv_heads()) * s.head_dim
}

/// A pool whose block tables are allocated in random order.
pub(crate) struct Machine {
    pub(crate) cpu: Cpu,
    pub(crate) kv: KvPool,
    pub(crate) shape: HeadShape,
    pub(crate) set: Setting,
    pub(crate) free: Vec<i32>,
}

/// One step's part of a text: positions `start..end`, with their blocks.
pub(crate) struct Chunk<'a> {
    pub(crate) text: &'a Text,
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) table: &'a [i32],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) isa: Isa,
    pub(crate) threads: usize,
    pub(crate) dtype: KvType,
    pub(crate) block_size: usize,
    pub(crate) seen: AttentionMask,
    pub(crate) softcap: Option<f32>,
    pub(crate) sinks: bool,
}

impl Setting {
    pub(crate) fn scale(&self, shape: &HeadShape) -> f32 {
        1.0 / (shape.head_dim as f32).sqrt()
    }

    /// The sink of a query head: below, within and above the range of the scores.
    pub(crate) fn sink(&self, head: usize) -> Option<f32> {
        self.sinks.then_some([0.5, -3.0, 4.0][head % 3])
    }
}

impl Machine {
    pub(crate) fn new(rng: &mut Rng, shape: HeadShape, set: Setting, tokens: usize) -> Self {
        let layout = KvLayout {
            layers: 2,
            kv_heads: shape.kv_heads(),
            head_dim: shape.head_dim,
            latent: None,
            block_size: set.block_size,
            dtype: set.dtype,
        };
        let blocks = tokens.div_ceil(set.block_size) + 8;
        let mut free: Vec<i32> = (0..blocks as i32).collect();
        rng.shuffle(&mut free);
        let cpu = Cpu::new(set.isa, set.threads).unwrap();
        Self {
            cpu,
            kv: KvPool::new(layout, blocks),
            shape,
            set,
            free,
        }
    }

    pub(crate) fn table(&mut self, tokens: usize) -> Vec<i32> {
        let blocks = tokens.div_ceil(self.kv.layout().block_size);
        self.free.split_off(self.free.len() - blocks)
    }

    /// Blocks of a chunk that the step accesses; earlier table entries are invalid.
    fn seen(&self, chunk: &Chunk<'_>) -> SequenceBlocks {
        let size = self.kv.layout().block_size;
        let first = self.set.seen.first(chunk.start) / size;
        let mut table = chunk.table.to_vec();
        table[..first].fill(-1);
        SequenceBlocks {
            table: table.into(),
            seen: first..chunk.end.div_ceil(size),
            writes_from: chunk.start / size,
        }
    }

    /// Runs one step over all chunks and returns the attended rows, chunk by chunk. Keys are not
    /// rotated.
    pub(crate) fn step(&mut self, chunks: &[Chunk<'_>]) -> Vec<f32> {
        let (d, width, block) = (
            self.shape.head_dim,
            width(&self.shape),
            self.kv.layout().block_size,
        );
        let (mut qkv, mut blocks, mut sequences, mut places) = (vec![], vec![], vec![], vec![]);
        for chunk in chunks {
            let first = places.len();
            qkv.extend_from_slice(chunk.text.rows(chunk.start..chunk.end));
            places.extend((chunk.start..chunk.end).map(|p| KvPosition {
                block: chunk.table[p / block] as usize,
                offset: p % block,
            }));
            blocks.push(self.seen(chunk));
            sequences.push(Sequence {
                start: chunk.start,
                rows: first..places.len(),
            });
        }
        let mut out = vec![f32::NAN; places.len() * self.shape.heads * d];
        let mut plan = AttentionPlan::new(sequences, self.shape, self.cpu.threads().count());
        let mut kv = self.kv.lease(blocks).unwrap();
        let sinks: Option<Vec<f32>> = (0..self.shape.heads).map(|h| self.set.sink(h)).collect();
        let scoring = Scoring {
            seen: self.set.seen,
            scale: self.set.scale(&self.shape),
            softcap: self.set.softcap,
            sinks: sinks.as_deref(),
        };
        for layer in 0..2 {
            let mut qkv = qkv.clone();
            self.cpu.rotate_and_store(
                &mut qkv,
                self.shape.heads,
                &Rotation::default(),
                &places,
                layer,
                &mut kv,
            );
            // The second layer must repeat the first: it has its own tiles, and the plan is reused.
            let mut again = vec![f32::NAN; out.len()];
            plan.run(
                &self.cpu,
                &kv,
                layer,
                scoring,
                &qkv,
                width,
                HeadColumns {
                    rows: &mut again,
                    row: self.shape.heads * d,
                    head: d,
                    first: 0,
                },
            );
            assert!(layer == 0 || bits(&again) == bits(&out), "layers differ");
            out = again;
        }
        out
    }

    /// Runs a whole text in steps of the given sizes, alone in its batch.
    pub(crate) fn alone(&mut self, text: &Text, mut sizes: impl FnMut() -> usize) -> Vec<f32> {
        let table = self.table(text.len());
        let (mut out, mut start) = (Vec::new(), 0);
        while start < text.len() {
            let end = text.len().min(start + sizes());
            out.extend(self.step(&[Chunk {
                text,
                start,
                end,
                table: &table,
            }]));
            start = end;
        }
        out
    }
}

/// Stores a text's keys and values in both layers without attention.
pub(crate) fn store_only(machine: &mut Machine, text: &Text, table: &[i32]) {
    let block = machine.kv.layout().block_size;
    let places: Vec<KvPosition> = (0..text.len())
        .map(|p| KvPosition {
            block: table[p / block] as usize,
            offset: p % block,
        })
        .collect();
    let blocks: Vec<usize> = places.iter().map(|p| p.block).collect();
    let mut kv = machine.kv.lease(uses(&[], &blocks)).unwrap();
    for layer in 0..2 {
        machine.cpu.rotate_and_store(
            &mut text.rows.clone(),
            machine.shape.heads,
            &Rotation::default(),
            &places,
            layer,
            &mut kv,
        );
    }
}
