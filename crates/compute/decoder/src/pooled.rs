//! Pooling state of a sequence that produces a vector (for example, an embedding) instead of
//! tokens.

use penstock_wire::Pooling;

/// Pooling state of a slot.
pub(crate) enum Pooled {
    Last,
    Mean(Mean),
}

/// Running sum of the tokens' hidden states. Tokens are added in ascending order, so the sum does
/// not depend on how the prompt is divided into steps.
#[derive(Default)]
pub(crate) struct Mean {
    sum: Vec<f64>,
    tokens: usize,
}

impl Pooled {
    /// `None` if the sequence samples tokens.
    pub(crate) fn new(pooling: Pooling) -> Option<Self> {
        match pooling {
            Pooling::None => None,
            Pooling::Last => Some(Self::Last),
            Pooling::Mean => Some(Self::Mean(Mean::default())),
        }
    }

    /// Checks a plan whose tokens start at position `start` against the pooling state: a mean
    /// requires every token of the prompt, and a pooled sequence has no drafts.
    pub(crate) fn check(&self, start: usize, drafts: usize) -> Result<(), String> {
        match self {
            _ if drafts > 0 => Err(format!("{drafts} drafts of a pooled sequence")),
            Self::Mean(mean) if mean.tokens != start => {
                let have = mean.tokens;
                Err(format!("a mean over {have} tokens goes on at {start}"))
            }
            _ => Ok(()),
        }
    }

    /// Records that a step has computed `tokens` tokens.
    pub(crate) fn advance(&mut self, tokens: usize) {
        if let Self::Mean(mean) = self {
            mean.tokens += tokens;
        }
    }
}

impl Mean {
    pub(crate) fn add(&mut self, row: &[f32]) {
        self.sum.resize(row.len(), 0.0);
        let pairs = self.sum.iter_mut().zip(row);
        pairs.for_each(|(sum, x)| *sum += f64::from(*x));
    }

    /// The mean over all added rows; `more` is the number of rows that the current step added. Must
    /// be called before [`Pooled::advance`].
    pub(crate) fn value(&self, more: usize) -> Vec<f32> {
        let count = (self.tokens + more) as f64;
        self.sum.iter().map(|sum| (sum / count) as f32).collect()
    }
}
