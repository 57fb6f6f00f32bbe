use super::error::{Refused, rule};
use super::fields::Fields;
use super::writer::FrameWriter;
use super::{FrameError, MAX_LOGPROBS};

/// How the tokens of a sequence are drawn: encoded by the front door, decoded by the sampler, and
/// opaque to everything between them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; finite, at least 0. 0 is greedy.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 is all.
    pub top_k: u32,
    /// Keep the most likely tokens up to this probability, in (0, 1]; 1 is all.
    pub top_p: f32,
    /// Key of the random stream.
    pub seed: u64,
    /// Index among the choices of one client request; part of the random stream's counter.
    pub choice: u32,
    /// Alternatives for each output token, up to [`MAX_LOGPROBS`]; `Some(0)` is the token's own
    /// log-probability alone.
    pub logprobs: Option<u8>,
}

/// The most bytes that encoded parameters may have, in any version.
pub const MAX_SAMPLING_BYTES: usize = 64;

const VERSION: u8 = 1;
const NAME: &str = "SAMPLING";

impl Default for SamplingParams {
    /// Greedy.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            seed: 0,
            choice: 0,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// The parameters as bytes, or an error that names the value out of range.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        let mut out = Vec::with_capacity(27);
        FrameWriter::message(&mut out, NAME, |w| self.write(w))?;
        Ok(out)
    }

    /// Reads what [`Self::encode`] wrote; another version is an error.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        Fields::frame(bytes, NAME, Self::read)
    }

    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        let start = f.offset();
        let version = f.u8("version")?;
        if version != VERSION {
            return Err(f.refuse("version", 1, version, "1"));
        }
        let params = Self {
            temperature: f.f32("temperature")?,
            top_k: f.u32("top_k")?,
            top_p: f.f32("top_p")?,
            seed: f.u64("seed")?,
            choice: f.u32("choice")?,
            logprobs: read_logprobs(f, "logprobs")?,
        };
        params.check().map_err(|e| e.error(f.frame_name(), start))?;
        Ok(params)
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) -> Result<(), FrameError> {
        self.check()
            .map_err(|e| e.error(w.frame_name(), w.offset()))?;
        w.u8(VERSION);
        w.f32(self.temperature);
        w.u32(self.top_k);
        w.f32(self.top_p);
        w.u64(self.seed);
        w.u32(self.choice);
        w.i16(self.logprobs.map_or(-1, i16::from));
        Ok(())
    }

    /// The ranges, for both directions.
    fn check(&self) -> Result<(), Refused> {
        let (temperature, top_p) = (self.temperature, self.top_p);
        let ok = temperature.is_finite() && temperature >= 0.0;
        rule("temperature", 1, &temperature, ok, "finite numbers from 0")?;
        let ok = i32::try_from(self.top_k).is_ok();
        rule("top_k", 5, &self.top_k, ok, "0 to 2147483647")?;
        let ok = top_p > 0.0 && top_p <= 1.0;
        rule("top_p", 9, &top_p, ok, "above 0, up to 1")?;
        check_logprobs("logprobs", 25, self.logprobs)
    }
}

/// Number of alternatives, or -1.
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
