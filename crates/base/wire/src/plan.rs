//! Step plans (what each rank computes in one step), and the results of steps.

use super::fields::Fields;
use super::grammar::MAX_PLAN_GRAMMAR_BYTES;
use super::sampling::MAX_SAMPLING_BYTES;
use super::step::{LogprobRow, read_rows, write_rows};
use super::writer::FrameWriter;
use super::{FrameError, Pooling, Problem};

/// Placeholder in [`StepPlan::tokens`] for the last token sampled in the slot. The ranks substitute
/// the token, because it may not have reached the scheduler yet.
pub const LAST_SAMPLED: i32 = -1;

/// Sentinel in [`StepResult::tokens`] for a token that could not be sampled: the sequence's hidden
/// state is not finite.
pub const NOT_FINITE: i32 = -1;
/// Sentinel in [`StepResult::tokens`] for a token that could not be sampled: the sequence's grammar
/// became too complex.
pub const NO_TOKEN: i32 = -2;
/// Sentinel in [`StepResult::tokens`] for a token that was not sampled because the sequence's
/// grammar mask is late. It is the only token of its sequence. The sequence's row of the batch must
/// be recomputed, and also a later row that was planned ahead.
pub const LATE_MASK: i32 = -3;

/// A new sequence in a slot. It resets the slot: empty block tables, no last token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Below `max_num_seqs`.
    pub slot: u32,
    /// Encoded [`SamplingParams`](super::SamplingParams), at most [`MAX_SAMPLING_BYTES`].
    pub sampling: Vec<u8>,
    /// Prompt tokens, and tokens sampled since, if
    /// [`needs_history`](super::SamplingParams::needs_history) or there is a grammar; else empty.
    pub history: Vec<i32>,
    /// Number of prompt tokens in `history`.
    pub prompt_len: u32,
    /// Number of alternatives for each prompt token; -1 = no log-probabilities.
    pub prompt_logprobs: i32,
    /// Grammar of the output: its index in the plan's `grammars` plus 1; 0 = no grammar.
    pub grammar: u32,
    /// 0 = no adapter.
    pub adapter: u32,
    /// Unless `Pooling::None`, [`StepPlan::sample`] requests the sequence's vector instead of a
    /// token.
    pub pooling: Pooling,
}

/// Input of one step for all ranks, as columns. Unless stated otherwise, a column has one entry for
/// each of the n sequences in the step. G is the number of KV groups (layers that share one block
/// table).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Step number, from 1.
    pub step: u64,
    pub registrations: Vec<Registration>,
    /// Encoded [`Grammar`](super::Grammar)s of the registrations, at most
    /// [`MAX_PLAN_GRAMMAR_BYTES`] together.
    pub grammars: Vec<Vec<u8>>,
    pub slots: Vec<i32>,
    /// Position in the sequence of the first token to compute.
    pub starts: Vec<i32>,
    /// Number of tokens to compute, drafts included.
    pub lengths: Vec<i32>,
    /// 1: sample a token after each of the last 1 + drafts tokens, or return the vector of a pooled
    /// sequence.
    pub sample: Vec<i8>,
    /// Number of draft tokens at the end of the sequence's tokens; 0 without `sample`. The column
    /// is empty if no sequence has drafts.
    pub drafts: Vec<i32>,
    /// Token ids, sequence by sequence. The first of a sequence may be [`LAST_SAMPLED`].
    pub tokens: Vec<i32>,
    /// The prompt token after each of `tokens`, or -1; empty if no prompt log-probabilities are
    /// requested.
    pub targets: Vec<i32>,
    /// n * G entries: number of entries at the front of the sequence's block table for the group
    /// that are kept.
    pub kept: Vec<i32>,
    /// n * G + 1 offsets into `added`: where the new blocks of each sequence and group begin and
    /// end.
    pub added_offsets: Vec<i32>,
    /// Blocks after the kept entries; -1 for a block whose tokens have all left the attention
    /// window.
    pub added: Vec<i32>,
}

/// Log-probabilities by sequence: its index in the plan, and one row per token.
pub type LogprobTable = Vec<(u32, Vec<LogprobRow>)>;

/// Vectors of pooled sequences, by their index in the plan.
pub type VectorTable = Vec<(u32, Vec<f32>)>;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepResult {
    /// Number of tokens sampled for each sequence of the plan: 0 to drafts + 1.
    pub counts: Vec<i32>,
    /// Sampled tokens, sequence by sequence.
    pub tokens: Vec<i32>,
    pub logprobs: LogprobTable,
    /// Row j belongs to the prompt token at position start + 1 + j, where start is the sequence's
    /// entry in [`StepPlan::starts`].
    pub prompt_logprobs: LogprobTable,
    pub vectors: VectorTable,
    /// Wall time of the step on the rank.
    pub seconds: f64,
    /// Cost of grammar masks since the rank's previous result.
    pub masks: MaskCost,
}

/// Cost of grammar masks: their number, the seconds that background threads computed them, and the
/// seconds that rows of the batch waited for them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MaskCost {
    pub count: u32,
    pub seconds: f64,
    pub wait_seconds: f64,
}

const PLAN: &str = "PLAN";
const RESULT: &str = "RESULT";
const SAMPLING_ALLOWED: &str = "up to 16384 bytes";
const GRAMMARS_ALLOWED: &str = "up to 262145 bytes together";
const DRAFTS: u8 = 1;
const TARGETS: u8 = 2;
/// Bytes before the registrations: step, six counts, flags.
const PLAN_HEAD: usize = 8 + 6 * 4 + 1;
/// Bytes of an otherwise empty registration: slot, prompt_logprobs, grammar, adapter, pooling,
/// prompt_len, lengths of sampling parameters and history.
const SMALLEST_REGISTRATION: usize = 7 * 4 + 1;
/// Bytes before the columns: seconds, cost of masks, five counts.
const RESULT_HEAD: usize = 8 + 20 + 5 * 4;
/// Bytes of an entry without rows: the sequence's index, length of the rows, number of rows.
const SMALLEST_TABLE: usize = 3 * 4;
/// Bytes of an entry with an empty vector: the sequence's index, length of the vector.
const SMALLEST_VECTOR: usize = 2 * 4;

impl StepPlan {
    /// Appends the plan; an error names a column whose length does not match.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), FrameError> {
        let groups = self.groups()?;
        FrameWriter::message(out, PLAN, |w| {
            w.u64(self.step);
            w.count(self.registrations.len());
            w.count(self.grammars.len());
            w.count(self.slots.len());
            w.count(groups);
            w.count(self.tokens.len());
            w.count(self.added.len());
            let flag = |column: &[i32], flag| if column.is_empty() { 0 } else { flag };
            w.u8(flag(&self.drafts, DRAFTS) | flag(&self.targets, TARGETS));
            self.registrations.iter().for_each(|each| each.write(w));
            self.grammars.iter().for_each(|each| w.bytes(each));
            for column in [&self.slots, &self.starts, &self.lengths, &self.drafts] {
                w.i32_column(column);
            }
            w.i8_column(&self.sample);
            for column in [&self.tokens, &self.targets, &self.kept] {
                w.i32_column(column);
            }
            w.i32_column(&self.added_offsets);
            w.i32_column(&self.added);
            Ok(())
        })
    }

    /// Decodes one whole plan. Checks the lengths of the columns only; a decoder checks the values
    /// against its limits.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        Fields::frame(bytes, PLAN, |f| {
            let step = f.u64("step")?;
            let registrations = f.u32("registrations")? as usize;
            let grammars = f.size("grammars")?;
            let [n, groups, tokens, added] = [
                f.size("n")?,
                f.size("groups")?,
                f.size("tokens")?,
                f.size("added")?,
            ];
            let tables = n.checked_mul(groups).unwrap_or(usize::MAX - 1);
            let flags = f.u8("flags")?;
            if flags & !(DRAFTS | TARGETS) != 0 {
                return Err(f.refuse("flags", 1, flags, "0 to 3"));
            }
            let present = |flag, count| if flags & flag == 0 { 0 } else { count };
            f.room("registrations", registrations, SMALLEST_REGISTRATION)?;
            f.room("grammars", grammars, 4)?;
            Ok(Self {
                step,
                registrations: (0..registrations)
                    .map(|_| Registration::read(f))
                    .collect::<Result<_, _>>()?,
                grammars: (0..grammars)
                    .map(|_| Ok(f.bytes("grammars")?.to_vec()))
                    .collect::<Result<_, FrameError>>()?,
                slots: f.i32_column("slots", n)?,
                starts: f.i32_column("starts", n)?,
                lengths: f.i32_column("lengths", n)?,
                drafts: f.i32_column("drafts", present(DRAFTS, n))?,
                sample: f.i8_column("sample", n)?,
                tokens: f.i32_column("tokens", tokens)?,
                targets: f.i32_column("targets", present(TARGETS, tokens))?,
                kept: f.i32_column("kept", tables)?,
                added_offsets: f.i32_column("added_offsets", tables + 1)?,
                added: f.i32_column("added", added)?,
            })
        })
    }

    /// Number of KV groups; an error if the columns' lengths do not match.
    fn groups(&self) -> Result<usize, FrameError> {
        let n = self.slots.len();
        let groups = self.kept.len() / n.max(1);
        let optional = |column: &[i32], length| column.is_empty() || column.len() == length;
        let shapes = [
            ("starts", self.starts.len(), self.starts.len() == n),
            ("lengths", self.lengths.len(), self.lengths.len() == n),
            ("sample", self.sample.len(), self.sample.len() == n),
            ("drafts", self.drafts.len(), optional(&self.drafts, n)),
            (
                "targets",
                self.targets.len(),
                optional(&self.targets, self.tokens.len()),
            ),
            ("kept", self.kept.len(), self.kept.len() == n * groups),
            (
                "added_offsets",
                self.added_offsets.len(),
                self.added_offsets.len() == n * groups + 1,
            ),
        ];
        for (field, entries, fits) in shapes {
            if !fits {
                let value = format!("a column of {entries}");
                return Err(refuse(field, value, "columns that fit each other"));
            }
        }
        let bytes: usize = self.grammars.iter().map(Vec::len).sum();
        if bytes > MAX_PLAN_GRAMMAR_BYTES {
            let value = format!("{bytes} bytes");
            return Err(refuse("grammars", value, GRAMMARS_ALLOWED));
        }
        let long = |each: &&Registration| each.sampling.len() > MAX_SAMPLING_BYTES;
        match self.registrations.iter().find(long) {
            Some(each) => {
                let value = format!("{} bytes", each.sampling.len());
                Err(refuse("sampling", value, SAMPLING_ALLOWED))
            }
            None => Ok(groups),
        }
    }
}

fn refuse(field: &'static str, value: String, allowed: &'static str) -> FrameError {
    FrameError {
        frame: PLAN,
        field,
        offset: 0,
        problem: Problem::Value { value, allowed },
    }
}

impl Registration {
    fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        let registration = Self {
            slot: f.u32("slot")?,
            prompt_logprobs: f.i32("prompt_logprobs")?,
            grammar: f.u32("grammar")?,
            adapter: f.u32("adapter")?,
            pooling: read_pooling(f)?,
            prompt_len: f.u32("prompt_len")?,
            history: {
                let count = f.size("history")?;
                f.i32_column("history", count)?
            },
            sampling: f.bytes("sampling")?.to_vec(),
        };
        match registration.sampling.len() {
            ..=MAX_SAMPLING_BYTES => Ok(registration),
            length => Err(f.refuse(
                "sampling",
                length,
                format!("{length} bytes"),
                SAMPLING_ALLOWED,
            )),
        }
    }

    fn write(&self, w: &mut FrameWriter<'_>) {
        w.u32(self.slot);
        w.i32(self.prompt_logprobs);
        w.u32(self.grammar);
        w.u32(self.adapter);
        w.u8(self.pooling as u8);
        w.u32(self.prompt_len);
        w.count(self.history.len());
        w.i32_column(&self.history);
        w.bytes(&self.sampling);
    }
}

fn read_pooling(f: &mut Fields<'_>) -> Result<Pooling, FrameError> {
    let code = f.u8("pooling")?;
    Pooling::from_code(code).ok_or_else(|| f.refuse("pooling", 1, code, "0 to 2"))
}

impl StepResult {
    /// Appends the result.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), FrameError> {
        FrameWriter::message(out, RESULT, |w| {
            self.write(w);
            Ok(())
        })
    }

    /// Decodes one whole result.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        Fields::frame(bytes, RESULT, Self::read)
    }

    fn write(&self, w: &mut FrameWriter<'_>) {
        let tables = [&self.logprobs, &self.prompt_logprobs];
        w.f64(self.seconds);
        w.u32(self.masks.count);
        w.f64(self.masks.seconds);
        w.f64(self.masks.wait_seconds);
        w.count(self.counts.len());
        w.count(self.tokens.len());
        tables.iter().for_each(|table| w.count(table.len()));
        w.count(self.vectors.len());
        w.i32_column(&self.counts);
        w.i32_column(&self.tokens);
        for (index, rows) in tables.into_iter().flatten() {
            w.u32(*index);
            w.nested(|w| write_rows(w, rows));
        }
        for (index, vector) in &self.vectors {
            w.u32(*index);
            w.vector(vector);
        }
    }

    fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        let seconds = f.f64("seconds")?;
        let masks = MaskCost {
            count: f.u32("masks")?,
            seconds: f.f64("mask seconds")?,
            wait_seconds: f.f64("mask wait seconds")?,
        };
        let [counts, tokens, logprobs, prompts, vectors] = [
            f.size("counts")?,
            f.size("tokens")?,
            f.size("logprobs")?,
            f.size("prompt logprobs")?,
            f.size("vectors")?,
        ];
        let rows = |f: &mut Fields<'_>, field| f.nested(field, read_rows);
        let numbers = |f: &mut Fields<'_>, field| f.vector(field);
        Ok(Self {
            seconds,
            masks,
            counts: f.i32_column("counts", counts)?,
            tokens: f.i32_column("tokens", tokens)?,
            logprobs: read_table(f, "logprobs", (logprobs, SMALLEST_TABLE), counts, rows)?,
            prompt_logprobs: read_table(
                f,
                "prompt logprobs",
                (prompts, SMALLEST_TABLE),
                counts,
                rows,
            )?,
            vectors: read_table(f, "vectors", (vectors, SMALLEST_VECTOR), counts, numbers)?,
        })
    }
}

/// Reads a table whose indexes ascend and are below `n`, the number of sequences.
fn read_table<T>(
    f: &mut Fields<'_>,
    field: &'static str,
    (entries, smallest): (usize, usize),
    n: usize,
    read: impl Fn(&mut Fields<'_>, &'static str) -> Result<T, FrameError>,
) -> Result<Vec<(u32, T)>, FrameError> {
    f.room(field, entries, smallest)?;
    let mut table: Vec<(u32, T)> = Vec::with_capacity(entries);
    for _ in 0..entries {
        let index = f.u32("index")?;
        let ascends = table.last().is_none_or(|(last, _)| *last < index);
        if !(ascends && (index as usize) < n) {
            return Err(f.refuse("index", 4, index, "sequences of the plan, ascending"));
        }
        table.push((index, read(f, field)?));
    }
    Ok(table)
}

/// Size of the largest plan in bytes: all `sequences` register with a history of `length` tokens
/// and a grammar, and no column is empty.
pub fn plan_bytes(
    sequences: usize,
    tokens: usize,
    groups: usize,
    added: usize,
    length: usize,
) -> usize {
    let columns = 4 * 4 + 1 + 2 * 4 * groups;
    PLAN_HEAD
        + sequences * (SMALLEST_REGISTRATION + MAX_SAMPLING_BYTES + columns + 4 * length + 4)
        + MAX_PLAN_GRAMMAR_BYTES
        + 2 * 4 * tokens
        + 4 * (added + 1)
}

/// Size of the largest result in bytes: a log-probability row with `alternatives` for each sequence
/// and each token, and a vector of `vector` numbers for each sequence.
pub fn result_bytes(sequences: usize, tokens: usize, alternatives: usize, vector: usize) -> usize {
    let row = 12 + 8 * alternatives;
    RESULT_HEAD
        + (sequences + tokens) * (4 + row)
        + sequences * (4 + 2 * SMALLEST_TABLE + SMALLEST_VECTOR + 4 * vector)
}
