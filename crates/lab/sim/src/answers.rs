//! Answers (responses) of the simulated engine: their tokens and lengths.

use std::str::FromStr;
use std::sync::Arc;

use penstock_wire::{LogprobRow, TokenRequest};

use crate::random;

/// Distribution of an answer's natural length in tokens: log-normal with this mean and this
/// coefficient of variation (cv).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LengthDistribution {
    pub(crate) mean: f64,
    pub(crate) cv: f64,
}

impl FromStr for LengthDistribution {
    type Err = String;

    /// Parses `MEAN` or `MEAN:CV`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (mean, cv) = text.split_once(':').unwrap_or((text, "0"));
        let number = |word: &str| word.trim().parse::<f64>().ok();
        match (number(mean), number(cv)) {
            (Some(mean), Some(cv)) if (1.0..=1e9).contains(&mean) && (0.0..=10.0).contains(&cv) => {
                Ok(Self { mean, cv })
            }
            _ => Err(format!(
                "{text:?} is not MEAN or MEAN:CV with a mean from 1 and a coefficient of \
                 variation of 0 to 10"
            )),
        }
    }
}

impl LengthDistribution {
    fn draw(&self, key: u64) -> u32 {
        let variance = (1.0 + self.cv * self.cv).ln();
        let exponent = self.mean.ln() - variance / 2.0 + variance.sqrt() * random::normal(key);
        exponent.exp().round().clamp(1.0, f64::from(u32::MAX)) as u32
    }
}

/// Generates the answers of one engine. Engines with equal seeds give equal answers to equal
/// requests.
#[derive(Debug, Clone)]
pub(crate) struct Answers {
    /// Token ids that answers consist of. Never empty; the end token is not among them.
    pub(crate) words: Arc<[u32]>,
    pub(crate) eos: u32,
    pub(crate) seed: u64,
    /// Distribution of natural lengths; `None`: they are not drawn.
    pub(crate) lengths: Option<LengthDistribution>,
}

/// The answer to one request.
#[derive(Debug)]
pub(crate) struct Answer {
    key: u64,
    /// Number of the end token, counted from 1; `None`: the answer has no natural end.
    natural: Option<u32>,
}

impl Answers {
    /// `natural` is the answer's natural length in tokens, unless lengths are drawn.
    pub(crate) fn answer(&self, request: &TokenRequest, natural: Option<u32>) -> Answer {
        let prompt_len = request.prompt.len() - request.resumed as usize;
        let prompt = random::of_tokens(&request.prompt[..prompt_len]);
        let key = random::join(
            random::join(self.seed, request.sampling.seed),
            random::join(prompt, u64::from(request.sampling.choice)),
        );
        let drawn = self.lengths.map(|lengths| lengths.draw(key));
        let natural = drawn.or(natural).filter(|_| !request.ignore_eos);
        Answer {
            key,
            natural: natural.map(|length| length.max(request.min_tokens.saturating_add(1))),
        }
    }

    /// Synthetic log-probabilities for a token of the answer: it is the most likely one, and each
    /// of `count` alternatives is half as likely as the previous one.
    pub(crate) fn logprobs(&self, token: u32, count: u8) -> LogprobRow {
        let others = self.words.iter().copied().filter(|id| *id != token);
        let ids = std::iter::once(token).chain(others).take(count.into());
        let logprob = |halvings: u8| -f32::from(halvings) * std::f32::consts::LN_2;
        LogprobRow {
            logprob: logprob(1),
            rank: 1,
            alternatives: ids.zip((1..).map(logprob)).collect(),
        }
    }

    /// A synthetic vector of length 1 for a pooled request. Equal prompts get equal vectors; those
    /// of different prompts are nearly orthogonal.
    pub(crate) fn vector(&self, answer: &Answer, size: u32) -> Vec<f32> {
        let draw = |n: u32| random::normal(random::join(answer.key, n.into()));
        let drawn: Vec<f64> = (0..size).map(draw).collect();
        let length = drawn.iter().map(|x| x * x).sum::<f64>().sqrt();
        drawn.iter().map(|x| (x / length) as f32).collect()
    }

    /// Token `number` of an answer, counted from 1.
    pub(crate) fn token(&self, answer: &Answer, number: u32) -> u32 {
        if answer.natural == Some(number) {
            return self.eos;
        }
        let draw = random::join(answer.key, u64::from(number));
        self.words[(draw % self.words.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use penstock_wire::SamplingParams;

    use super::*;

    fn answers(lengths: Option<LengthDistribution>) -> Answers {
        Answers {
            words: (1..1000).collect(),
            eos: 0,
            seed: 5,
            lengths,
        }
    }

    fn request(prompt: &[u32]) -> TokenRequest {
        TokenRequest {
            prompt: prompt.to_vec(),
            ..TokenRequest::default()
        }
    }

    #[test]
    fn equal_requests_get_equal_answers_and_others_do_not() {
        let made = answers(None);
        let text = |request: &TokenRequest| {
            let answer = made.answer(request, None);
            (1..20)
                .map(|number| made.token(&answer, number))
                .collect::<Vec<_>>()
        };
        assert_eq!(text(&request(&[1, 2])), text(&request(&[1, 2])));
        assert_ne!(text(&request(&[1, 2])), text(&request(&[2, 1])));
        let seeded = TokenRequest {
            sampling: SamplingParams {
                seed: 9,
                ..SamplingParams::default()
            },
            ..request(&[1, 2])
        };
        assert_ne!(text(&request(&[1, 2])), text(&seeded));
        assert!(!text(&seeded).contains(&0));
    }

    #[test]
    fn equal_prompts_have_equal_vectors_and_others_do_not() {
        let made = answers(None);
        let vector = |prompt: &[u32]| made.vector(&made.answer(&request(prompt), None), 500);
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
        let (one, other) = (vector(&[1, 2]), vector(&[2, 1]));
        assert_eq!(one, vector(&[1, 2]));
        assert!((product(&one, &one) - 1.0).abs() < 1e-5);
        assert!(product(&one, &other).abs() < 0.3);
    }

    #[test]
    fn lengths_have_the_mean_and_spread_that_were_asked_for() {
        let made = answers(Some("200:0.5".parse().unwrap()));
        let lengths: Vec<f64> = (0..20_000)
            .map(|n| f64::from(made.answer(&request(&[n]), None).natural.unwrap()))
            .collect();
        let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
        let variance = lengths.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / 20_000.0;
        // The standard error is 0.7 for the mean and about 0.005 for the coefficient of variation.
        assert!((mean - 200.0).abs() < 4.0, "{mean}");
        assert!((variance.sqrt() / mean - 0.5).abs() < 0.03);
    }

    #[test]
    fn the_end_of_text_comes_where_it_should() {
        let made = answers(Some("7".parse().unwrap()));
        let answer = made.answer(&request(&[1]), None);
        assert_eq!(
            (made.token(&answer, 6) == 0, made.token(&answer, 7)),
            (false, 0)
        );
        let least = TokenRequest {
            max_tokens: 50,
            min_tokens: 20,
            ..request(&[1])
        };
        assert_eq!(made.answer(&least, None).natural, Some(21));
        let endless = TokenRequest {
            ignore_eos: true,
            ..request(&[1])
        };
        assert_eq!(made.answer(&endless, None).natural, None);
    }

    #[test]
    fn bad_distributions_are_refused() {
        for text in ["", "x", "0", "10:-1", "10:x", "10:1:2"] {
            assert!(text.parse::<LengthDistribution>().is_err(), "{text}");
        }
    }
}
