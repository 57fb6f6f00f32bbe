//! Attention of one KV head for some query rows, split by split: a split is 256 consecutive keys.

use std::ops::Range;

use super::{MOST_ROWS, Queries, ROWS, Runs, SPLIT, Scoring, Span, generic, latent};
#[cfg(target_arch = "x86_64")]
use crate::amx::{HalfTiles, Halves};
use crate::buffer::Aligned;
use crate::isa::Isa;
use crate::kv::{KvType, RUN, StepLease};
use crate::ops::{exp, for_each_isa, softcap, to_bf16};

/// No tile unit on this architecture.
#[cfg(not(target_arch = "x86_64"))]
type Halves = ();

/// Parameters of one attention call, shared by all its tasks.
pub(super) struct Call<'a> {
    pub(super) isa: Isa,
    pub(super) kv: &'a StepLease<'a>,
    pub(super) layer: usize,
    pub(super) scoring: Scoring<'a>,
}

/// Consecutive tokens of one sequence and KV head, within one split.
pub(super) struct Stretch {
    pub(super) sequence: usize,
    pub(super) head: usize,
    pub(super) tokens: Range<usize>,
}

impl Stretch {
    /// Prefetches the keys (`part` 0) or values (1) into the L2 cache.
    fn fetch(&self, call: &Call<'_>, part: usize) {
        let size = call.kv.layout().block_size;
        let mut from = self.tokens.start;
        while from < self.tokens.end {
            let to = self.tokens.end.min((from / size + 1) * size);
            let (layer, head) = (call.layer, self.head);
            call.kv.fetch(self.sequence, from..to, layer, head, part);
            from = to;
        }
    }
}

/// Running softmax state of some query rows: maximum, sum and weighted values of the splits merged
/// so far.
#[derive(Default)]
pub(super) struct SoftmaxState {
    pub(super) max: Vec<f32>,
    pub(super) sum: Vec<f32>,
    pub(super) values: Vec<f32>,
}

impl SoftmaxState {
    pub(super) fn reset(&mut self, rows: usize, dim: usize) {
        self.max.clear();
        self.max.resize(rows, f32::NEG_INFINITY);
        self.sum.clear();
        self.sum.resize(rows, 0.0);
        self.values.clear();
        self.values.resize(rows * dim, 0.0);
    }

    /// Merges one split's result for `row`, which must attend to at least one key of the split.
    pub(super) fn merge(
        &mut self,
        isa: Isa,
        row: usize,
        dim: usize,
        max: f32,
        sum: f32,
        values: &[f32],
    ) {
        let acc = &mut self.values[row * dim..(row + 1) * dim];
        merge_row(
            isa,
            &mut self.max[row],
            &mut self.sum[row],
            acc,
            max,
            sum,
            values,
        );
    }
}

/// Final factor of a row's weighted values. A sink is a score without a value, merged as if it were
/// the last split.
pub(super) fn finish(max: f32, sum: f32, sink: Option<f32>) -> f32 {
    let Some(sink) = sink else { return 1.0 / sum };
    let new = max.max(sink);
    let old = exp(max - new);
    old / (sum * old + exp(sink - new))
}

for_each_isa! {
    fn merge_row(
        max: &mut f32, sum: &mut f32, acc: &mut [f32], max2: f32, sum2: f32, values: &[f32],
    ) = merge_body;
}

#[inline(always)]
fn merge_body(max: &mut f32, sum: &mut f32, acc: &mut [f32], max2: f32, sum2: f32, values: &[f32]) {
    let new = max.max(max2);
    let old = if *max == f32::NEG_INFINITY {
        0.0
    } else {
        exp(*max - new)
    };
    let fresh = exp(max2 - new);
    *max = new;
    *sum = *sum * old + sum2 * fresh;
    for (a, v) in acc.iter_mut().zip(values) {
        *a = *a * old + v * fresh;
    }
}

for_each_isa! {
    /// Converts bf16 numbers to f32.
    fn widen(rounded: &[u16], out: &mut [f32]) = widen_body;
}

#[inline(always)]
fn widen_body(rounded: &[u16], out: &mut [f32]) {
    for (out, &bits) in out.iter_mut().zip(rounded) {
        *out = f32::from_bits(u32::from(bits) << 16);
    }
}

/// A task's buffers.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) queries: Vec<f32>,
    queries_bf16: Aligned<u16>,
    scores: Aligned<f32>,
    p_bf16: Aligned<u16>,
    weighted: Aligned<f32>,
    /// Copies of the values of one split: in the V layout if the pool stores values as part of the
    /// keys, or with the runs of each pair adjacent for AMX.
    values: Aligned<u8>,
    /// The AMX tile unit, released between stretches.
    tiles: Halves,
    pub(super) state: SoftmaxState,
}

impl Scratch {
    /// Resizes for `rows` zeroed query rows of `dim` numbers, and values of `value_dim`.
    pub(super) fn reset(&mut self, rows: usize, dim: usize, value_dim: usize) {
        self.queries.clear();
        self.queries.resize(rows * dim, 0.0);
        self.queries_bf16.ensure(rows * dim);
        self.scores.ensure(MOST_ROWS * SPLIT);
        self.p_bf16.ensure(MOST_ROWS * SPLIT);
        self.weighted.ensure(MOST_ROWS * value_dim);
        self.state.reset(rows, value_dim);
    }

    /// Rounds the queries to the format of the keys.
    pub(super) fn round_queries(&mut self, isa: Isa, dtype: KvType) {
        if dtype == KvType::Bf16 {
            let rounded = &mut self.queries_bf16[..self.queries.len()];
            to_bf16(isa, &self.queries, rounded);
            if isa.vectors() != Isa::Avx512 {
                widen(isa, rounded, &mut self.queries);
            }
        }
    }

    /// Adds the attention of the rows at absolute positions `positions` over a stretch of keys to
    /// `state`, and prefetches the stretch `ahead`.
    pub(super) fn attend(
        &mut self,
        call: &Call<'_>,
        positions: &[usize],
        stretch: &Stretch,
        ahead: Option<&Stretch>,
    ) {
        let start = stretch.tokens.start;
        let empty: (&[u8], &[u8]) = (&[], &[]);
        let mut runs = [empty; SPLIT / RUN];
        let count = stretch.tokens.len().div_ceil(RUN);
        let (sequence, tokens) = (stretch.sequence, stretch.tokens.clone());
        call.kv
            .runs(sequence, tokens, call.layer, stretch.head, &mut runs);
        let mut values = std::mem::take(&mut self.values);
        let layout = call.kv.layout();
        if layout.latent.is_some() {
            latent::spread(call.isa, layout, &mut runs[..count], &mut values);
        } else if on_tiles(call.isa, layout.dtype) {
            #[cfg(target_arch = "x86_64")]
            super::amx::join(odd(start), &mut runs[..count], &mut values);
        }
        let rows = rows_at_once(call.isa, layout.dtype);
        for (g, group) in positions.chunks(rows).enumerate() {
            self.attend_rows(
                call,
                g * rows,
                group,
                &runs[..count],
                start,
                ahead.filter(|_| g == 0),
            );
        }
        #[cfg(target_arch = "x86_64")]
        self.tiles.release();
        self.values = values;
    }

    fn attend_rows(
        &mut self,
        call: &Call<'_>,
        first: usize,
        positions: &[usize],
        runs: &Runs<'_>,
        start: usize,
        ahead: Option<&Stretch>,
    ) {
        let (dim, value_dim) = (call.kv.layout().dim(), call.kv.layout().value_dim());
        let keys = runs.len() * RUN;
        let high = |p: usize| (p + 1).saturating_sub(start).min(keys);
        let seen = call.scoring.seen;
        let low = |p: usize| seen.first(p).saturating_sub(start).min(keys);
        let widest = positions.iter().map(|&p| high(p)).max().unwrap_or(0);
        if positions.iter().all(|&p| low(p) >= high(p)) {
            return;
        }
        let runs = &runs[..widest.div_ceil(RUN)];
        let rows = first * dim..(first + positions.len()) * dim;
        let queries = Queries {
            bf16: &self.queries_bf16[rows.clone()],
            f32: &self.queries[rows],
            rows: positions.len(),
            dim,
        };
        let dtype = call.kv.layout().dtype;
        if let Some(ahead) = ahead {
            ahead.fetch(call, 0);
        }
        let (isa, tiles) = (call.isa, &mut self.tiles);
        scores((isa, dtype), tiles, &queries, runs, &mut self.scores);
        let (mut stats, mut spans) = (
            [(f32::NEG_INFINITY, 0.0f32); MOST_ROWS],
            [(0, 0); MOST_ROWS],
        );
        let spans = &mut spans[..positions.len()];
        for (span, &position) in spans.iter_mut().zip(positions) {
            *span = (low(position), high(position));
        }
        let keys = runs.len() * RUN;
        let mut scale = call.scoring.scale;
        if let Some(cap) = call.scoring.softcap {
            for scores in self.scores.chunks_exact_mut(SPLIT).take(spans.len()) {
                softcap(call.isa, &mut scores[..keys], scale, cap);
            }
            scale = 1.0;
        }
        let rounded = match dtype {
            KvType::Bf16 => &mut self.p_bf16[..],
            KvType::F32 => &mut [],
        };
        let tiles = &mut self.tiles;
        let rows = (&mut self.scores[..], rounded, &mut stats[..]);
        softmax((call.isa, dtype), tiles, rows, (scale, keys), spans);
        let p = Queries {
            bf16: &self.p_bf16,
            f32: &self.scores,
            rows: positions.len(),
            dim: SPLIT,
        };
        if let Some(ahead) = ahead {
            ahead.fetch(call, 1);
        }
        let out = &mut self.weighted;
        let tiles = &mut self.tiles;
        weigh((isa, dtype), tiles, &p, (start, value_dim), runs, out);
        for (row, &position) in positions.iter().enumerate() {
            if low(position) < high(position) {
                let (max, sum) = stats[row];
                self.state.merge(
                    call.isa,
                    first + row,
                    value_dim,
                    max,
                    sum,
                    &self.weighted[row * value_dim..(row + 1) * value_dim],
                );
            }
        }
    }
}

/// Whether attention products run on AMX. If so, products with few rows do too, because results of
/// tiles and vectors differ in the last bits.
fn on_tiles(isa: Isa, dtype: KvType) -> bool {
    isa == Isa::Amx && dtype == KvType::Bf16
}

fn rows_at_once(isa: Isa, dtype: KvType) -> usize {
    if on_tiles(isa, dtype) {
        MOST_ROWS
    } else {
        ROWS
    }
}

/// Whether the run at token `start` is the second run of a pair; pairs are counted from the start
/// of the sequence.
fn odd(start: usize) -> bool {
    !(start / RUN).is_multiple_of(2)
}

#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
fn scores(
    (isa, dtype): (Isa, KvType),
    tiles: &mut Halves,
    q: &Queries<'_>,
    runs: &Runs<'_>,
    out: &mut [f32],
) {
    match isa.vectors() {
        // SAFETY: the instruction set is available; the callee asserts the shapes.
        #[cfg(target_arch = "x86_64")]
        _ if on_tiles(isa, dtype) => unsafe { super::amx::scores(tiles, q, runs, out) },
        // SAFETY: the instruction set is available; the callee asserts the shapes.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { super::avx512::scores(dtype, q, runs, out) },
        // SAFETY: the instruction set is available; the callee asserts the shapes.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { super::avx2::scores(dtype, q, runs, out) },
        _ => generic::scores(dtype, q, runs, out),
    }
}

/// Converts the scores of `keys` keys to probabilities and (maximum, sum), for all rows of `spans`.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
fn softmax(
    (isa, dtype): (Isa, KvType),
    tiles: &mut Halves,
    (scores, rounded, stats): (&mut [f32], &mut [u16], &mut [(f32, f32)]),
    (scale, keys): (f32, usize),
    spans: &[Span],
) {
    #[cfg(target_arch = "x86_64")]
    if isa.vectors() == Isa::Avx512 {
        // A few rows at a time: `keep_awake` must run in between, so that the tile unit is fast
        // when the values are processed.
        let size = if on_tiles(isa, dtype) { 4 } else { ROWS };
        for (i, spans) in spans.chunks(size).enumerate() {
            if i > 0 {
                tiles.keep_awake();
            }
            let (scores, row) = (&mut scores[i * size * SPLIT..], i * size);
            let rounded = rounded.get_mut(row * SPLIT..).unwrap_or(&mut []);
            let rows = (scores, rounded, &mut stats[row..]);
            // SAFETY: the instruction set is available.
            unsafe { super::avx512::softmax(rows, (scale, keys), spans) }
        }
        return;
    }
    for ((row, &(low, high)), stats) in spans.iter().enumerate().zip(stats) {
        let range = row * SPLIT..row * SPLIT + keys;
        let scores = &mut scores[range.clone()];
        generic::softmax(isa, scores, scale, low, high, stats);
        if !rounded.is_empty() {
            to_bf16(isa, scores, &mut rounded[range.clone()]);
            widen(isa, &rounded[range], scores);
        }
    }
}

/// Sums the values weighted by the probabilities `p`. `start` is the position of the first run's
/// first token.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
fn weigh(
    (isa, dtype): (Isa, KvType),
    tiles: &mut Halves,
    p: &Queries<'_>,
    (start, dim): (usize, usize),
    runs: &Runs<'_>,
    out: &mut [f32],
) {
    match isa.vectors() {
        // SAFETY: the instruction set is available; the callee asserts the shapes.
        #[cfg(target_arch = "x86_64")]
        _ if on_tiles(isa, dtype) => unsafe {
            super::amx::weigh(tiles, p, odd(start), runs, dim, out)
        },
        // SAFETY: the instruction set is available; the callee asserts the shapes.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { super::avx512::weigh(dtype, p, runs, dim, out) },
        // SAFETY: the instruction set is available; the callee asserts the shapes.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { super::avx2::weigh(dtype, p, runs, dim, out) },
        _ => generic::weigh(dtype, p, runs, dim, out),
    }
}
