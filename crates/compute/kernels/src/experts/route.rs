//! Routing: choice of a token's experts from the router's logits.

use crate::ops::exp;

/// Rule for the choice and weights of a token's experts.
///
/// In this order: the logits of all experts become scores; `choice = score + correction`; only
/// experts of the best groups stay eligible; the `chosen` experts with the highest choice values
/// are chosen; their scores, normalised and scaled, are the weights. Ties go to the lower index.
#[derive(Clone, Debug)]
pub struct Routing {
    /// Number of routed experts.
    pub experts: usize,
    /// Experts per token.
    pub chosen: usize,
    /// Function from logits to scores.
    pub score: Score,
    /// Choose by logit; the weights are scores over the chosen experts only.
    pub after: bool,
    /// Bias per expert; affects the choice, not the weight.
    pub correction: Option<Vec<f32>>,
    /// Groups of experts; only the best groups are eligible.
    pub groups: Option<Groups>,
    /// Divide a token's weights by their sum plus this number; `None` = do not divide.
    pub normalise: Option<f32>,
    /// Factor of the weights.
    pub scale: f32,
}

/// Function from a router's logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Softmax over the experts.
    Softmax,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// The logit itself.
    Logit,
}

/// Equal, contiguous groups of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups; divides the number of experts.
    pub count: usize,
    /// Number of eligible groups.
    pub keep: usize,
    /// The score of a group is the sum of this many of its highest choice values.
    pub best: usize,
}

/// A chosen expert with the weight of its output.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Choice {
    /// Index of the expert.
    pub expert: u32,
    /// Factor of the expert's output (of its input if
    /// [`weighted_inputs`](super::Experts::weighted_inputs)).
    pub weight: f32,
}

impl Routing {
    /// Chooses the experts of one token, highest first. Overwrites `logits` with scores.
    ///
    /// # Panics
    /// `logits` does not have one number per expert, or `out` is too small for the chosen experts.
    pub fn choose(&self, logits: &mut [f32], out: &mut [Choice]) {
        assert!(
            logits.len() == self.experts && out.len() == self.chosen,
            "a router of other experts"
        );
        let mut choice = logits.to_vec();
        if !self.after {
            self.score.apply(logits);
        }
        if !self.orders_logits() {
            choice.copy_from_slice(logits);
        }
        if let Some(correction) = &self.correction {
            choice.iter_mut().zip(correction).for_each(|(c, b)| *c += b);
        }
        if let Some(groups) = &self.groups {
            groups.mask(&mut choice);
        }
        let mut weights = vec![0.0; out.len()];
        for (out, weight) in out.iter_mut().zip(&mut weights) {
            let best = take_largest(&mut choice);
            out.expert = best as u32;
            *weight = logits[best];
        }
        if self.after {
            self.score.apply(&mut weights);
        }
        let sum: f32 = weights.iter().sum();
        let divisor = self.normalise.map_or(1.0, |epsilon| sum + epsilon);
        for (out, weight) in out.iter_mut().zip(weights) {
            out.weight = weight / divisor * self.scale;
        }
    }

    /// Whether the choice sorts by logit instead of score. Both give the same order, but softmax
    /// scores may be too small to differ.
    fn orders_logits(&self) -> bool {
        let single = self.groups.is_none_or(|groups| groups.best == 1);
        self.score == Score::Softmax && self.correction.is_none() && single
    }
}

/// Value of entries that are taken or not eligible: below all others.
const TAKEN: f32 = f32::NEG_INFINITY;

/// Returns the index of the largest number, the first in a tie, and marks it taken. NaN is never
/// largest; if all are NaN or taken, the first index left is returned.
fn take_largest(numbers: &mut [f32]) -> usize {
    let (mut best, mut largest) = (usize::MAX, TAKEN);
    for (i, &number) in numbers.iter().enumerate() {
        if number > largest {
            (best, largest) = (i, number);
        }
    }
    if best == usize::MAX {
        let left = numbers.iter().position(|n| n.is_nan());
        best = left.unwrap_or(0);
    }
    numbers[best] = TAKEN;
    best
}

impl Score {
    fn apply(self, numbers: &mut [f32]) {
        match self {
            Self::Logit => {}
            Self::Sigmoid => numbers.iter_mut().for_each(|x| *x = sigmoid(*x)),
            Self::Softmax => {
                let max = numbers.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
                numbers.iter_mut().for_each(|x| *x = exp(*x - max));
                let sum: f32 = numbers.iter().sum();
                numbers.iter_mut().for_each(|x| *x /= sum);
            }
        }
    }
}

/// `1 / (1 + e^-x)`.
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

impl Groups {
    /// Marks all experts of ineligible groups as taken.
    fn mask(self, choice: &mut [f32]) {
        let size = choice.len() / self.count;
        let score = |group: &[f32]| {
            let mut group = group.to_vec();
            let best = (0..self.best.min(size)).map(|_| {
                let before = group.clone();
                before[take_largest(&mut group)]
            });
            best.sum()
        };
        let mut scores: Vec<f32> = choice.chunks_exact(size).map(score).collect();
        let mut kept = vec![false; self.count];
        for _ in 0..self.keep {
            kept[take_largest(&mut scores)] = true;
        }
        let groups = choice.chunks_exact_mut(size).zip(kept);
        groups
            .filter(|(_, kept)| !kept)
            .for_each(|(group, _)| group.fill(TAKEN));
    }
}
