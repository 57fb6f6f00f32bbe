use super::error::{Refused, rule};
use super::fields::Fields;
use super::writer::FrameWriter;
use super::{FrameError, MAX_LOGPROBS};

/// Sampling parameters of a sequence. The API server encodes them and the sampler decodes them; all
/// other code treats them as opaque.
///
/// Order of the logit processors: `allowed`, `banned`, `suppressed`, `bias`, penalties,
/// temperature, `min_p`, `top_k`, `top_p`.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; finite, at least 0. 0 = greedy.
    pub temperature: f32,
    /// Keeps the k most likely tokens; 0 = all.
    pub top_k: u32,
    /// Keeps the most likely tokens up to this cumulative probability, in (0, 1]; 1 = all.
    pub top_p: f32,
    /// Keeps the tokens with at least this fraction of the largest probability, in [0, 1]; 0 = all.
    pub min_p: f32,
    /// Key of the random number generator.
    pub seed: u64,
    /// Index among the choices of one client request; part of the generator's counter.
    pub choice: u32,
    /// Number of alternatives (the most likely tokens with log-probabilities) for each output
    /// token, up to [`MAX_LOGPROBS`]; `Some(0)` = only the output token's own log-probability.
    pub logprobs: Option<u8>,
    /// Divides positive logits of tokens in prompt or output and multiplies negative ones; above 0.
    /// 1 = off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens in the output, in [-2, 2]. 0 = off.
    pub presence_penalty: f32,
    /// Subtracted per occurrence of a token in the output, in [-2, 2]. 0 = off.
    pub frequency_penalty: f32,
    /// Token ids, and the finite numbers added to their logits.
    pub bias: Vec<(u32, f32)>,
    /// Allow-list of tokens; empty = all.
    pub allowed: Vec<u32>,
    /// Token sequences that the output must not contain, each non-empty.
    pub banned: Vec<Vec<u32>>,
    /// Tokens that are not sampled at positions below `suppressed_until`, counted from the first
    /// token of the prompt.
    pub suppressed: Vec<u32>,
    pub suppressed_until: u32,
}

/// Maximum size of encoded parameters in bytes, in any version.
pub const MAX_SAMPLING_BYTES: usize = 16 << 10;

const VERSION: u8 = 2;
const NAME: &str = "SAMPLING";
/// Offset of `logprobs` in the encoded parameters; the penalties follow it.
const LOGPROBS_AT: usize = 29;

impl Default for SamplingParams {
    fn default() -> Self {
        Self::GREEDY
    }
}

impl SamplingParams {
    /// Samples the most likely token, without logit processors.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
        choice: 0,
        logprobs: None,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        bias: Vec::new(),
        allowed: Vec::new(),
        banned: Vec::new(),
        suppressed: Vec::new(),
        suppressed_until: 0,
    };

    /// Whether the sampler needs the sequence's earlier tokens, for penalties or banned sequences.
    pub fn needs_history(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || self.banned.iter().any(|run| run.len() > 1)
    }

    /// Encodes the parameters; an error names a value out of range.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        let mut out = Vec::with_capacity(64);
        FrameWriter::message(&mut out, NAME, |w| self.write(w))?;
        Ok(out)
    }

    /// Decodes the bytes of [`Self::encode`]; a different version is an error.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        Fields::frame(bytes, NAME, Self::read)
    }

    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        let start = f.offset();
        let version = f.u8("version")?;
        if version != VERSION {
            return Err(f.refuse("version", 1, version, "2"));
        }
        let params = Self {
            temperature: f.f32("temperature")?,
            top_k: f.u32("top_k")?,
            top_p: f.f32("top_p")?,
            min_p: f.f32("min_p")?,
            seed: f.u64("seed")?,
            choice: f.u32("choice")?,
            logprobs: read_logprobs(f, "logprobs")?,
            repetition_penalty: f.f32("repetition_penalty")?,
            presence_penalty: f.f32("presence_penalty")?,
            frequency_penalty: f.f32("frequency_penalty")?,
            suppressed_until: f.u32("suppressed_until")?,
            suppressed: f.u32_list("suppressed")?,
            allowed: f.u32_list("allowed")?,
            bias: read_bias(f)?,
            banned: read_banned(f)?,
        };
        params.check().map_err(|e| e.error(f.frame_name(), start))?;
        Ok(params)
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) -> Result<(), FrameError> {
        let start = w.offset();
        self.check().map_err(|e| e.error(w.frame_name(), start))?;
        w.u8(VERSION);
        w.f32(self.temperature);
        w.u32(self.top_k);
        w.f32(self.top_p);
        w.f32(self.min_p);
        w.u64(self.seed);
        w.u32(self.choice);
        w.i16(self.logprobs.map_or(-1, i16::from));
        w.f32(self.repetition_penalty);
        w.f32(self.presence_penalty);
        w.f32(self.frequency_penalty);
        w.u32(self.suppressed_until);
        w.u32_list(&self.suppressed);
        w.u32_list(&self.allowed);
        w.count(self.bias.len());
        for &(token, bias) in &self.bias {
            w.u32(token);
            w.f32(bias);
        }
        w.count(self.banned.len());
        self.banned.iter().for_each(|run| w.u32_list(run));
        match w.offset() - start {
            ..=MAX_SAMPLING_BYTES => Ok(()),
            length => Err(w.refuse("sampling", format!("{length} bytes"), SIZE)),
        }
    }

    /// Checks the ranges when encoding and decoding.
    fn check(&self) -> Result<(), Refused> {
        let (temperature, top_p, min_p) = (self.temperature, self.top_p, self.min_p);
        let ok = temperature.is_finite() && temperature >= 0.0;
        rule("temperature", 1, &temperature, ok, "finite numbers from 0")?;
        let ok = i32::try_from(self.top_k).is_ok();
        rule("top_k", 5, &self.top_k, ok, "0 to 2147483647")?;
        let ok = top_p > 0.0 && top_p <= 1.0;
        rule("top_p", 9, &top_p, ok, "above 0, up to 1")?;
        rule("min_p", 13, &min_p, (0.0..=1.0).contains(&min_p), "0 to 1")?;
        check_logprobs("logprobs", LOGPROBS_AT, self.logprobs)?;
        self.check_penalties()?;
        let finite = |value: f32| value.is_finite();
        let wrong = self.bias.iter().map(|b| b.1).find(|&b| !finite(b));
        let shown = wrong.unwrap_or_default();
        rule("bias", 0, &shown, wrong.is_none(), "finite numbers")?;
        let some = self.banned.iter().all(|run| !run.is_empty());
        rule("banned", 0, &"an empty run", some, "runs of tokens")
    }

    fn check_penalties(&self) -> Result<(), Refused> {
        let (at, repetition) = (LOGPROBS_AT + 2, self.repetition_penalty);
        let ok = repetition.is_finite() && repetition > 0.0;
        rule(
            "repetition_penalty",
            at,
            &repetition,
            ok,
            "finite numbers above 0",
        )?;
        for (name, at, penalty) in [
            ("presence_penalty", at + 4, self.presence_penalty),
            ("frequency_penalty", at + 8, self.frequency_penalty),
        ] {
            rule(
                name,
                at,
                &penalty,
                (-2.0..=2.0).contains(&penalty),
                "-2 to 2",
            )?;
        }
        Ok(())
    }
}

const SIZE: &str = "at most 16384 bytes of bias, allowed, banned and suppressed tokens";

fn read_bias(f: &mut Fields<'_>) -> Result<Vec<(u32, f32)>, FrameError> {
    let count = f.count("bias", 8)?;
    (0..count)
        .map(|_| Ok((f.u32("bias")?, f.f32("bias")?)))
        .collect()
}

fn read_banned(f: &mut Fields<'_>) -> Result<Vec<Vec<u32>>, FrameError> {
    let count = f.count("banned", 4)?;
    (0..count).map(|_| f.u32_list("banned")).collect()
}

/// Reads a number of alternatives; -1 = `None`.
pub(super) fn read_logprobs(
    f: &mut Fields<'_>,
    field: &'static str,
) -> Result<Option<u8>, FrameError> {
    let value = f.i16(field)?;
    match u8::try_from(value) {
        Ok(alternatives) => Ok(Some(alternatives)),
        Err(_) if value == -1 => Ok(None),
        Err(_) => Err(f.refuse(field, 2, value, LOGPROBS)),
    }
}

pub(super) fn check_logprobs(
    field: &'static str,
    offset: usize,
    alternatives: Option<u8>,
) -> Result<(), Refused> {
    let ok = alternatives.is_none_or(|k| k <= MAX_LOGPROBS);
    let value = alternatives.map_or(-1, i16::from);
    rule(field, offset, &value, ok, LOGPROBS)
}

const LOGPROBS: &str = "-1 to 20";
