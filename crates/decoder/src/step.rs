//! A step's input and output: flat columns, as the scheduler plans them (see ARCHITECTURE.md,
//! StepPlan).

use penstock_kernels::{KvClaim, KvPool, Logprob, Sampling};

use crate::error::DecoderError;

/// A request that gets a slot in this step.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    /// Slot, under `max_num_seqs`.
    pub slot: usize,
    /// How its tokens are drawn.
    pub sampling: Sampling,
    /// Alternatives to report for sampled tokens; `None` = no log-probabilities.
    pub logprobs: Option<usize>,
    /// The same for prompt tokens.
    pub prompt_logprobs: Option<usize>,
}

impl Registration {
    fn check(&self, limits: &Limits) -> Result<(), DecoderError> {
        let (
            slot,
            Sampling {
                temperature, top_p, ..
            },
        ) = (self.slot, self.sampling);
        let alternatives = self.logprobs.max(self.prompt_logprobs).unwrap_or(0);
        let problem = if slot >= limits.slots {
            format!("is not under {}", limits.slots)
        } else if temperature.is_nan() || temperature < 0.0 {
            format!("has temperature {temperature}; it must be at least 0")
        } else if !(0.0..=1.0).contains(&top_p) {
            format!("has top_p {top_p}; it must be in [0, 1]")
        } else if alternatives > limits.vocab {
            format!(
                "wants {alternatives} alternatives from a vocabulary of {}",
                limits.vocab
            )
        } else {
            return Ok(());
        };
        Err(DecoderError::Plan(format!(
            "registered slot {slot} {problem}"
        )))
    }
}

/// One step. Columns of n entries, one for each scheduled sequence, unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepPlan {
    /// New requests.
    pub registrations: Vec<Registration>,
    /// Slot.
    pub slots: Vec<i32>,
    /// Absolute position of the first token computed.
    pub starts: Vec<i32>,
    /// Tokens computed.
    pub lengths: Vec<i32>,
    /// Token ids, sequence after sequence.
    pub tokens: Vec<i32>,
    /// The next prompt token at each position, or -1; empty when nobody wants prompt
    /// log-probabilities.
    pub targets: Vec<i32>,
    /// 1 = sample after the last token.
    pub sample: Vec<i8>,
    /// Block tables, sequence after sequence.
    pub blocks: Vec<i32>,
    /// n + 1 offsets into `blocks`.
    pub block_offsets: Vec<i32>,
}

/// What a step computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// Tokens sampled for each sequence.
    pub counts: Vec<i32>,
    /// Sampled tokens.
    pub tokens: Vec<i32>,
    /// (index in the plan, log-probabilities of its sampled token).
    pub logprobs: Vec<(usize, Logprob)>,
    /// (index in the plan, log-probabilities of its prompt targets in order).
    pub prompt_logprobs: Vec<(usize, Vec<Logprob>)>,
}

/// Limits that a plan is checked against.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub(crate) struct Limits {
    pub(crate) slots: usize,
    pub(crate) tokens: usize,
    pub(crate) vocab: usize,
    pub(crate) max_position: usize,
    pub(crate) block_size: usize,
    pub(crate) blocks: usize,
}

impl StepPlan {
    /// Sequences in the plan.
    pub fn sequences(&self) -> usize {
        self.slots.len()
    }

    /// Checks what the kernels rely on, so that a wrong plan is an error and never a wrong read.
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), DecoderError> {
        let n = self.slots.len();
        let equal = [self.starts.len(), self.lengths.len(), self.sample.len()]
            .iter()
            .all(|&len| len == n);
        let sum: i64 = self.lengths.iter().map(|&l| i64::from(l)).sum();
        if !equal || self.block_offsets.len() != n + 1 || sum != self.tokens.len() as i64 {
            return Err(DecoderError::Plan(format!(
                "columns of {n} sequences and {} tokens differ in length",
                self.tokens.len()
            )));
        }
        if !self.targets.is_empty() && self.targets.len() != self.tokens.len() {
            return Err(DecoderError::Plan(
                "targets and tokens differ in length".into(),
            ));
        }
        if self.tokens.is_empty() || self.tokens.len() > limits.tokens {
            return Err(DecoderError::Plan(format!(
                "{} tokens, not in 1..={}",
                self.tokens.len(),
                limits.tokens
            )));
        }
        let ids = self
            .tokens
            .iter()
            .chain(self.targets.iter().filter(|&&t| t != -1));
        check_range("token id", ids, limits.vocab)?;
        check_range("slot", &self.slots, limits.slots)?;
        check_range("block", &self.blocks, limits.blocks)?;
        self.registrations
            .iter()
            .try_for_each(|r| r.check(limits))?;
        (0..n).try_for_each(|i| self.check_sequence(i, limits))?;
        check_distinct("slot", self.slots.clone())?;
        let written = (0..n)
            .flat_map(|i| self.written(i, limits.block_size))
            .copied()
            .collect();
        check_distinct("block to be written", written)
    }

    /// The blocks that the (checked) sequence stores tokens in.
    fn written(&self, i: usize, block_size: usize) -> &[i32] {
        let (start, length) = (self.starts[i] as usize, self.lengths[i] as usize);
        let table = &self.blocks[self.block_offsets[i] as usize..];
        &table[start / block_size..(start + length).div_ceil(block_size)]
    }

    /// The blocks that the (checked) sequence reads only. What its table names behind the tokens of
    /// this step is not touched.
    fn read(&self, i: usize, block_size: usize) -> &[i32] {
        let table = &self.blocks[self.block_offsets[i] as usize..];
        &table[..self.starts[i] as usize / block_size]
    }

    /// Takes the (checked) plan's blocks for the duration of the step.
    pub(crate) fn claim<'a>(&self, kv: &'a mut KvPool) -> Result<KvClaim<'a>, DecoderError> {
        let (all, size) = (0..self.sequences(), kv.layout().block_size);
        let number = |&block: &i32| block as usize;
        let writes = all.clone().flat_map(|i| self.written(i, size)).map(number);
        let reads = all.flat_map(|i| self.read(i, size)).map(number);
        kv.claim(writes, reads)
            .map_err(|lent| DecoderError::Plan(format!("{lent}: its transfer must end first")))
    }

    fn check_sequence(&self, i: usize, limits: &Limits) -> Result<(), DecoderError> {
        let (start, length) = (i64::from(self.starts[i]), i64::from(self.lengths[i]));
        if start < 0 || length < 1 || start + length > limits.max_position as i64 {
            return Err(DecoderError::Plan(format!(
                "sequence {i}: positions {start}..{} are outside 0..{}",
                start + length,
                limits.max_position
            )));
        }
        let (from, to) = (
            i64::from(self.block_offsets[i]),
            i64::from(self.block_offsets[i + 1]),
        );
        let needed = (start + length + limits.block_size as i64 - 1) / limits.block_size as i64;
        if from < 0 || to > self.blocks.len() as i64 || to - from < needed {
            return Err(DecoderError::Plan(format!(
                "sequence {i}: {} blocks where {needed} are needed",
                to - from
            )));
        }
        Ok(())
    }
}

fn check_distinct(what: &str, mut values: Vec<i32>) -> Result<(), DecoderError> {
    values.sort_unstable();
    match values.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(DecoderError::Plan(format!(
            "{what} {} appears twice",
            pair[0]
        ))),
        None => Ok(()),
    }
}

fn check_range<'a>(
    what: &str,
    values: impl IntoIterator<Item = &'a i32>,
    limit: usize,
) -> Result<(), DecoderError> {
    match values
        .into_iter()
        .find(|&&v| usize::try_from(v).map_or(true, |v| v >= limit))
    {
        Some(v) => Err(DecoderError::Plan(format!(
            "{what} {v} is not in 0..{limit}"
        ))),
        None => Ok(()),
    }
}
