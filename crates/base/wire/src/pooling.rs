//! Pooled requests, which return a vector made from the hidden states of their prompt.

use super::FrameError;
use super::fields::Fields;
use super::writer::FrameWriter;

/// Selects the positions whose hidden states (after the final norm) form a sequence's vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Pooling {
    /// The sequence samples tokens.
    #[default]
    None = 0,
    /// The last token.
    Last = 1,
    /// All tokens: the vector is the mean of their hidden states.
    Mean = 2,
}

/// Content of the vector that answers a pooled request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum PoolerOutput {
    /// The engine rejects pooled requests.
    #[default]
    None = 0,
    /// The pooled hidden state, used unchanged.
    Embedding = 1,
    /// The pooled hidden state; users scale it to length 1.
    UnitEmbedding = 2,
    /// A logit for each label of the model's classification head.
    Labels = 3,
}

/// Vectors that the engine can return for pooled requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pooler {
    pub output: PoolerOutput,
    /// Numbers per vector.
    pub size: u32,
    /// The model has no output head: all non-pooled requests are rejected.
    pub only: bool,
}

impl Pooling {
    /// The pooling with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::None, Self::Last, Self::Mean]
            .get(usize::from(code))
            .copied()
    }
}

impl PoolerOutput {
    /// The output with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        let all = [
            Self::None,
            Self::Embedding,
            Self::UnitEmbedding,
            Self::Labels,
        ];
        all.get(usize::from(code)).copied()
    }
}

impl Pooler {
    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        let code = f.u8("pooler output")?;
        let output = PoolerOutput::from_code(code);
        Ok(Self {
            output: output.ok_or_else(|| f.refuse("pooler output", 1, code, "0 to 3"))?,
            size: f.u32("vector size")?,
            only: match f.u8("pooled only")? {
                0 => false,
                1 => true,
                other => return Err(f.refuse("pooled only", 1, other, "0 or 1")),
            },
        })
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) {
        w.u8(self.output as u8);
        w.u32(self.size);
        w.u8(self.only.into());
    }
}
