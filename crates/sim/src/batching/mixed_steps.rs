//! Bound of mixed steps: how many prompt tokens a step takes beside decodes, as
//! `penstock.scheduler.mixed_steps` learns it from the times of the steps before.
//! `tests/fixtures/mixed-steps.json` holds both to the same answers.

use std::time::Duration;

/// Longest step with prompt tokens and decodes, in steps that only decode.
const STRETCH: f64 = 3.0;
/// Prompt tokens that are always allowed.
const FEWEST: f64 = 32.0;
/// Bound of the factor on `FEWEST` where a token costs more beside decodes than alone.
const DEAREST: f64 = 2.0;
/// Weight of the newest step in all averages.
const FRESH: f64 = 0.25;
/// Prompt tokens from which on a step says what one costs.
const COUNTED: u32 = 16;
/// Bit lengths of a number of decodes.
const SIZES: usize = u32::BITS as usize + 1;

/// Moving averages in seconds; 0 where nothing is known.
#[derive(Debug, Clone)]
pub(crate) struct MixedSteps {
    /// A prompt token in a step of prompts alone.
    alone: f64,
    /// A prompt token beside decodes.
    beside: f64,
    /// Steps that only decode, by the bit length of the number of decodes.
    decodes: [f64; SIZES],
    /// The same, from mixed steps less their prompt tokens.
    guesses: [f64; SIZES],
}

impl Default for MixedSteps {
    fn default() -> Self {
        Self {
            alone: 0.0,
            beside: 0.0,
            decodes: [0.0; SIZES],
            guesses: [0.0; SIZES],
        }
    }
}

impl MixedSteps {
    /// Learns from a step of so many decodes and prompt tokens.
    pub(crate) fn ran(&mut self, decodes: u32, prompts: u32, took: Duration) {
        let (size, seconds) = (bit_length(decodes), took.as_secs_f64());
        if seconds <= 0.0 || (1..COUNTED).contains(&prompts) {
            return;
        }
        let tokens = f64::from(prompts);
        if prompts == 0 {
            follow(&mut self.decodes[size], seconds);
        } else if decodes == 0 {
            follow(&mut self.alone, seconds / tokens);
        } else if self.decodes[size] > 0.0 {
            let rest = (seconds - self.decodes[size]).max(0.0);
            follow(&mut self.beside, rest / tokens);
        } else if self.token() > 0.0 {
            let rest = (seconds - self.token() * tokens).max(0.0);
            follow(&mut self.guesses[size], rest);
        }
    }

    /// Prompt tokens of a step with so many decodes, at most `budget`; all of it without decodes,
    /// and while one of the costs is unknown.
    pub(crate) fn prompt_budget(&self, decodes: u32, budget: usize) -> usize {
        let (step, token) = (self.decode_step(bit_length(decodes)), self.token());
        if step <= 0.0 || token <= 0.0 {
            return budget;
        }
        let fitting = ((STRETCH - 1.0) * step / token) as usize;
        budget.min(fitting.max(self.fewest()))
    }

    fn token(&self) -> f64 {
        known(self.beside).unwrap_or(self.alone)
    }

    fn fewest(&self) -> usize {
        let dearer = known(self.alone).map_or(1.0, |alone| self.beside / alone);
        (FEWEST * dearer.clamp(1.0, DEAREST)) as usize
    }

    /// A decode step as measured or guessed, or that of the next smaller size; 0 for no decodes.
    fn decode_step(&self, size: usize) -> f64 {
        let step = |size: usize| known(self.decodes[size]).or(known(self.guesses[size]));
        (1..=size).rev().find_map(step).unwrap_or(0.0)
    }
}

fn bit_length(number: u32) -> usize {
    (u32::BITS - number.leading_zeros()) as usize
}

fn known(average: f64) -> Option<f64> {
    (average > 0.0).then_some(average)
}

fn follow(average: &mut f64, value: f64) {
    *average = known(*average).map_or(value, |old| old + FRESH * (value - old));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// [decodes, prompt tokens, nanoseconds of the step, decodes to ask for, budget, answer]
    type Case = (u32, u32, u64, u32, usize, usize);

    #[test]
    fn the_answers_are_those_of_the_scheduler() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fixtures/mixed-steps.json"
        );
        let text = std::fs::read_to_string(path).unwrap();
        let runs: Vec<Vec<Case>> = serde_json::from_str(&text).unwrap();
        for (run, cases) in runs.iter().enumerate() {
            let mut mixed = MixedSteps::default();
            for (at, &(decodes, prompts, nanos, asked, budget, answer)) in cases.iter().enumerate()
            {
                mixed.ran(decodes, prompts, Duration::from_nanos(nanos));
                let got = mixed.prompt_budget(asked, budget);
                assert_eq!(got, answer, "run {run}, step {at}");
            }
        }
    }
}
