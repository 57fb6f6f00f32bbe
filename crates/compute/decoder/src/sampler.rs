//! The sampler of one sequence: logit processors, then sampling.

use std::borrow::Cow;
use std::collections::HashMap;

use penstock_kernels::{Isa, Sampling, argmax, sample};
use penstock_structured_output::Mask;
use penstock_wire::SamplingParams;

/// Sampler of one sequence. Logit processors apply in the order of the fields of
/// [`SamplingParams`].
pub(crate) struct Sampler {
    sampling: Sampling,
    rules: SamplingParams,
    /// Distinct tokens of the prompt, if there is a repetition penalty.
    prompt: Vec<u32>,
    /// Tokens of the output, if a processor needs them.
    output: Vec<u32>,
    /// Occurrences of each output token.
    counts: HashMap<u32, u32>,
}

impl Sampler {
    /// If [`SamplingParams::needs_history`], `history` has `prompt_len` prompt tokens followed by
    /// the output so far.
    pub(crate) fn new(rules: SamplingParams, history: &[i32], prompt_len: usize) -> Self {
        let (prompt, output) = history.split_at(prompt_len.min(history.len()));
        let mut prompt: Vec<u32> = prompt.iter().map(|&token| token as u32).collect();
        prompt.sort_unstable();
        prompt.dedup();
        let mut sampler = Self {
            sampling: Sampling {
                temperature: rules.temperature,
                top_k: rules.top_k as usize,
                top_p: rules.top_p,
                min_p: rules.min_p,
                seed: rules.seed,
                choice: rules.choice,
            },
            rules,
            prompt,
            output: Vec::new(),
            counts: HashMap::new(),
        };
        output
            .iter()
            .for_each(|&token| sampler.accept(token as u32));
        sampler
    }

    /// Appends a token to the output.
    pub(crate) fn accept(&mut self, token: u32) {
        if self.rules.needs_history() {
            self.output.push(token);
            *self.counts.entry(token).or_default() += 1;
        }
    }

    /// Samples the token at `position` from a row of logits. `drafts` are the draft tokens between
    /// the output so far and this row. `mask` has the tokens that the grammar allows. If the other
    /// rules ban all of these tokens, only the grammar applies.
    pub(crate) fn draw(
        &self,
        isa: Isa,
        logits: &[f32],
        position: u64,
        drafts: &[i32],
        mask: Option<&Mask>,
    ) -> u32 {
        let mut allowed = Cow::Borrowed(logits);
        if let Some(mask) = mask {
            mask.apply(allowed.to_mut());
        }
        let token = self.draw_allowed(isa, &allowed, position, drafts);
        match mask {
            // NaN logits can yield a forbidden token: fall back to the first allowed one.
            Some(mask) if !mask.allows(token) => mask.first().unwrap_or(token),
            _ => token,
        }
    }

    fn draw_allowed(&self, isa: Isa, logits: &[f32], position: u64, drafts: &[i32]) -> u32 {
        if !self.changes(position) {
            return self.choose(isa, logits, position);
        }
        let mut changed = logits.to_vec();
        self.mask(&mut changed, position, drafts);
        for &(token, bias) in &self.rules.bias {
            change(&mut changed, token, |logit| logit + bias);
        }
        self.penalize(&mut changed, drafts);
        if changed.iter().all(|&logit| logit == f32::NEG_INFINITY) {
            // Rules that ban all tokens are ignored, because a token must be sampled.
            return self.choose(isa, logits, position);
        }
        self.choose(isa, &changed, position)
    }

    fn choose(&self, isa: Isa, logits: &[f32], position: u64) -> u32 {
        if self.sampling.temperature <= 0.0 {
            argmax(isa, logits)
        } else {
            sample(isa, logits, &self.sampling, position)
        }
    }

    fn changes(&self, position: u64) -> bool {
        let rules = &self.rules;
        rules.needs_history()
            || !rules.bias.is_empty()
            || !rules.allowed.is_empty()
            || !rules.banned.is_empty()
            || self.suppresses(position)
    }

    fn suppresses(&self, position: u64) -> bool {
        position < u64::from(self.rules.suppressed_until) && !self.rules.suppressed.is_empty()
    }

    fn mask(&self, logits: &mut [f32], position: u64, drafts: &[i32]) {
        if !self.rules.allowed.is_empty() {
            let before = logits.to_vec();
            logits.fill(f32::NEG_INFINITY);
            for &token in &self.rules.allowed {
                if let Some(&logit) = before.get(token as usize) {
                    logits[token as usize] = logit;
                }
            }
        }
        for run in &self.rules.banned {
            if let Some((&last, start)) = run.split_last()
                && self.ends_with(start, drafts)
            {
                change(logits, last, |_| f32::NEG_INFINITY);
            }
        }
        if self.suppresses(position) {
            for &token in &self.rules.suppressed {
                change(logits, token, |_| f32::NEG_INFINITY);
            }
        }
    }

    /// True if the output followed by `drafts` ends with `run`.
    fn ends_with(&self, run: &[u32], drafts: &[i32]) -> bool {
        let from_drafts = run.len().min(drafts.len());
        let (before, last) = run.split_at(run.len() - from_drafts);
        let drafts = drafts[drafts.len() - from_drafts..].iter();
        drafts.zip(last).all(|(&a, &b)| a as u32 == b) && self.output.ends_with(before)
    }

    /// Repetition penalty: Keskar et al. 2019 (arXiv 1909.05858). Frequency and presence penalties:
    /// OpenAI's API.
    fn penalize(&self, logits: &mut [f32], drafts: &[i32]) {
        let rules = &self.rules;
        if !rules.needs_history() {
            return;
        }
        let mut counts = Cow::Borrowed(&self.counts);
        for &draft in drafts {
            *counts.to_mut().entry(draft as u32).or_default() += 1;
        }
        let repetition = rules.repetition_penalty;
        let divide = |logit: f32| match logit > 0.0 {
            true => logit / repetition,
            false => logit * repetition,
        };
        if repetition != 1.0 {
            let output = counts
                .keys()
                .filter(|&t| self.prompt.binary_search(t).is_err());
            for &token in self.prompt.iter().chain(output) {
                change(logits, token, divide);
            }
        }
        for (&token, &count) in counts.iter() {
            // Zero if both penalties are disabled.
            let penalty = rules.frequency_penalty * count as f32 + rules.presence_penalty;
            change(logits, token, |logit| logit - penalty);
        }
    }
}

fn change(logits: &mut [f32], token: u32, to: impl Fn(f32) -> f32) {
    if let Some(logit) = logits.get_mut(token as usize) {
        *logit = to(*logit);
    }
}
