//! Choice of a token's experts from the router's logits.

use crate::ops::exp;

/// How a token's experts are chosen and weighted.
///
/// Order: scores of all experts, `choice = score + correction`, groups, the `chosen` experts of the
/// highest choice, their weights, normalisation, scale. Equal choices go to the lower index.
#[derive(Clone, Debug)]
pub struct Routing {
    /// Routed experts.
    pub experts: usize,
    /// Experts of one token.
    pub chosen: usize,
    /// Function from logits to scores.
    pub score: Score,
    /// The logits are the choice, and the weights are the scores among the chosen ones.
    pub after: bool,
    /// For each expert, a number that counts in the choice and not in the weight.
    pub correction: Option<Vec<f32>>,
    /// Groups of experts, of which only some may be chosen from.
    pub groups: Option<Groups>,
    /// Weights are divided by their sum plus this.
    pub normalise: Option<f32>,
    /// Factor of the weights.
    pub scale: f32,
}

/// Function from a router's logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Exponentials that sum to 1.
    Softmax,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// The logits.
    Logit,
}

/// Equal, contiguous groups of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Groups; divides the experts.
    pub count: usize,
    /// Groups whose experts may be chosen.
    pub keep: usize,
    /// Experts of a group whose highest choices make up the group's score, as their sum.
    pub best: usize,
}

/// An expert of a token, with the weight of its output.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Choice {
    /// Index of the expert.
    pub expert: u32,
    /// Factor of its output.
    pub weight: f32,
}

impl Routing {
    /// Chooses the experts of one token, highest first; `logits` become scores.
    ///
    /// # Panics
    /// `logits` has not one number for each expert, or `out` not room for the chosen ones.
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

    /// Whether the logits themselves order the experts as their scores do: those of a softmax may
    /// be too small to differ.
    fn orders_logits(&self) -> bool {
        let single = self.groups.is_none_or(|groups| groups.best == 1);
        self.score == Score::Softmax && self.correction.is_none() && single
    }
}

/// What has been taken already: below every other number.
const TAKEN: f32 = f32::NEG_INFINITY;

/// Index of the largest number, the first among equals, which is then taken. What is not a number
/// is never larger; where nothing is, the first index left is taken.
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
    /// Takes all choices of the groups that are not kept.
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
