//! The pace of a replica, learned from its answers, as `crates/fleet` learns it, by least squares
//! instead of medians: a replay has no absurd answers. What is older counts less.

use penstock_routing::Pace;

/// What an observation keeps of its weight when the next one comes.
const KEEP: f32 = 0.98;
/// Prompt tokens that the default rate weighs as much as.
const PRIOR_TOKENS: f32 = 256.0;
/// Spread of the numbers of sequences from which on their influence is measured.
const SPREAD: f32 = 1.0;

/// Learns a [`Pace`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PaceMeter {
    prompt_tokens: f32,
    prompt_s: f32,
    /// Weight and weighted sums of x, y, xx and xy: x sequences, y seconds of an output token.
    weight: f32,
    x: f32,
    y: f32,
    xx: f32,
    xy: f32,
}

impl PaceMeter {
    /// Notes a first token `seconds` after its request was sent, when `tokens` prompt tokens, its
    /// own and those before them, were to be computed.
    pub(super) fn first_token(&mut self, tokens: f32, seconds: f32) {
        if is_amount(tokens) && is_amount(seconds) {
            self.prompt_tokens = KEEP * self.prompt_tokens + tokens;
            self.prompt_s = KEEP * self.prompt_s + seconds;
        }
    }

    /// Notes an answer: mean seconds of an output token, and the sequences that ran, its own
    /// included.
    pub(super) fn answer(&mut self, seconds: f32, sequences: f32) {
        if !is_amount(seconds) || !is_amount(sequences) {
            return;
        }
        for (sum, value) in [
            (&mut self.weight, 1.0),
            (&mut self.x, sequences),
            (&mut self.y, seconds),
            (&mut self.xx, sequences * sequences),
            (&mut self.xy, sequences * seconds),
        ] {
            *sum = KEEP * *sum + value;
        }
    }

    /// The pace so far; the default's where nothing is known.
    pub(super) fn pace(&self) -> Pace {
        let unknown = Pace::default();
        let tokens = PRIOR_TOKENS + self.prompt_tokens;
        let seconds = PRIOR_TOKENS / unknown.prefill_tokens_per_s + self.prompt_s;
        let (decode_s, decode_s_per_sequence) = self.decode(&unknown);
        Pace {
            prefill_tokens_per_s: tokens / seconds,
            decode_s,
            decode_s_per_sequence,
        }
    }

    /// Least squares. Where the numbers of sequences are too alike, the line has the default's
    /// proportions.
    fn decode(&self, unknown: &Pace) -> (f32, f32) {
        if self.weight <= 0.0 {
            return (unknown.decode_s, unknown.decode_s_per_sequence);
        }
        let (x, y) = (self.x / self.weight, self.y / self.weight);
        let spread = self.xx / self.weight - x * x;
        let slope = match spread >= SPREAD {
            true => (self.xy / self.weight - x * y) / spread,
            false => {
                let share = unknown.decode_s_per_sequence / unknown.decode_s;
                y * share / (1.0 + share * (x - 1.0).max(0.0))
            }
        };
        let slope = slope.clamp(0.0, y / x.max(1.0));
        ((y - slope * (x - 1.0)).max(0.0), slope)
    }
}

fn is_amount(value: f32) -> bool {
    value.is_finite() && (0.0..=1e12).contains(&value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_the_default() {
        let mut meter = PaceMeter::default();
        meter.first_token(f32::NAN, 1.0);
        meter.answer(-1.0, 3.0);
        assert_eq!(meter.pace(), Pace::default());
    }

    #[test]
    fn it_finds_the_line_and_follows_changes() {
        let mut meter = PaceMeter::default();
        let mut observe = |rate: f32, base: f32, each: f32| {
            for n in 0..400 {
                let sequences = (n % 20 + 1) as f32;
                meter.first_token(1000.0 * sequences, 1000.0 * sequences / rate);
                meter.answer(base + each * (sequences - 1.0), sequences);
            }
            meter.pace()
        };
        let near = |found: f32, wanted: f32| (found / wanted - 1.0).abs() < 0.02;
        for (rate, base, each) in [(20_000.0, 0.008, 0.0004), (3_000.0, 0.03, 0.002)] {
            let found = observe(rate, base, each);
            assert!(near(found.prefill_tokens_per_s, rate), "{found:?}");
            assert!(near(found.decode_s, base), "{found:?}");
            assert!(near(found.decode_s_per_sequence, each), "{found:?}");
        }
    }

    #[test]
    fn alike_numbers_of_sequences_give_the_default_s_proportions() {
        let mut meter = PaceMeter::default();
        (0..50).for_each(|_| meter.answer(0.04, 1.0));
        let pace = meter.pace();
        assert!((pace.decode_s - 0.04).abs() < 1e-4);
        assert!((pace.decode_s_per_sequence - 0.002).abs() < 1e-4);
    }
}
