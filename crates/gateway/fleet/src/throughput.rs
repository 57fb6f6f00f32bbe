//! Throughput of a replica, estimated from its responses. Pure.
//!
//! Two linear models: time to first token as a function of the number of tokens to compute before
//! it, and decode step time as a function of the number of sequences in the step. The models are
//! fitted to recent responses of all replicas of a class by the Theil-Sen estimator (Theil, 1950;
//! Sen, 1968), which is robust against outliers. A replica's own responses give a factor by which
//! it is slower than its class.

use std::collections::VecDeque;

use penstock_routing::Pace;

/// Number of recent responses kept for each replica. Small, so that changes take effect quickly.
const WINDOW: usize = 64;
/// Minimum number of responses for an estimate.
const ENOUGH: usize = 8;
/// Maximum number of points in the fit of a class.
const CLASS_POINTS: usize = 256;
/// Replicas whose times differ from the class's times by less than this factor count as equally
/// fast.
const ALIKE: f32 = 1.25;
/// Factor from the median absolute deviation of normally distributed values, divided by sqrt(n), to
/// the standard error of their median.
const MEDIAN_ERROR: f32 = 1.253 * 1.483;

/// Measurement of a response: (tokens or sequences, seconds).
pub(crate) type Point = (f32, f32);

/// Recent responses of a replica.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answers {
    pub prefill: VecDeque<Point>,
    pub decode: VecDeque<Point>,
}

impl Answers {
    /// Records a first token that came `seconds` after the request was sent, with `tokens` to
    /// compute before it.
    pub(crate) fn saw_first_token(&mut self, tokens: f32, seconds: f32) {
        push(&mut self.prefill, (tokens, seconds));
    }

    /// Records a decode with a mean of `seconds` for each token and `sequences` in the step.
    pub(crate) fn saw_decode(&mut self, sequences: f32, seconds: f32) {
        push(&mut self.decode, (sequences, seconds));
    }
}

fn push(points: &mut VecDeque<Point>, point: Point) {
    let (x, y) = point;
    if !(x.is_finite() && y.is_finite() && x > 0.0 && y > 0.0) {
        return;
    }
    if points.len() == WINDOW {
        points.pop_front();
    }
    points.push_back(point);
}

/// Fitted models of one class of replicas.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Class {
    /// Seconds to the first token, as a function of the tokens to compute before it.
    prefill: Line,
    /// Seconds of a decode step, as a function of its sequences.
    decode: Line,
}

impl Class {
    /// A class whose models are fitted to the responses of its replicas, with defaults where there
    /// are too few responses.
    pub(crate) fn learn<'a>(all: impl Iterator<Item = &'a Answers> + Clone) -> Self {
        let pace = Pace::default();
        let prefill = Line {
            base: 0.0,
            slope: 1.0 / pace.prefill_tokens_per_s,
        };
        let decode = Line {
            base: pace.decode_s - pace.decode_s_per_sequence,
            slope: pace.decode_s_per_sequence,
        };
        let prefills = all.clone().flat_map(|one| one.prefill.iter().copied());
        let decodes = all.flat_map(|one| one.decode.iter().copied());
        Self {
            prefill: fit(&spread(prefills.collect()), prefill),
            decode: fit(&spread(decodes.collect()), decode),
        }
    }

    /// Throughput of a replica of this class, given its own responses. The result is the class's
    /// models times a factor. A fit to the replica's own responses would follow noise under even
    /// load, and equal replicas would get unequal shares.
    pub(crate) fn pace(&self, own: &Answers) -> Pace {
        let prefill_s = self.prefill.slope * slowness(&own.prefill, self.prefill);
        let slowness = slowness(&own.decode, self.decode);
        Pace {
            prefill_tokens_per_s: (1.0 / prefill_s).clamp(1.0, 1e7),
            decode_s: (self.decode.at(1.0) * slowness).clamp(1e-6, 60.0),
            decode_s_per_sequence: (self.decode.slope * slowness).clamp(0.0, 10.0),
        }
    }
}

/// At most [`CLASS_POINTS`] of the points, evenly spaced.
fn spread(points: Vec<Point>) -> Vec<Point> {
    let step = points.len().div_ceil(CLASS_POINTS).max(1);
    points.into_iter().step_by(step).collect()
}

/// Median ratio of measured seconds to those that `line` predicts; 1 if the difference is not
/// significant or is too small to matter.
fn slowness(points: &VecDeque<Point>, line: Line) -> f32 {
    if points.len() < ENOUGH {
        return 1.0;
    }
    let log = |&(x, y): &Point| (y / line.at(x).max(1e-9)).ln();
    let logs: Vec<f32> = points.iter().map(log).collect();
    let middle = quantile(&logs, 0.5);
    let off: Vec<f32> = logs.iter().map(|one| (one - middle).abs()).collect();
    let error = MEDIAN_ERROR * quantile(&off, 0.5) / (points.len() as f32).sqrt();
    match middle.abs() > ALIKE.ln().max(3.0 * error) {
        true => middle.exp(),
        false => 1.0,
    }
}

/// `base + slope * x`.
#[derive(Debug, Clone, Copy)]
struct Line {
    base: f32,
    slope: f32,
}

impl Line {
    fn at(self, x: f32) -> f32 {
        self.base + self.slope * x
    }
}

/// Fits a line to the points. If their x values are too close together for a slope, the `known`
/// line is scaled to the points. With fewer than [`ENOUGH`] points, the `known` line is returned.
fn fit(points: &[Point], known: Line) -> Line {
    if points.len() < ENOUGH {
        return known;
    }
    let places: Vec<f32> = points.iter().map(|(x, _)| *x).collect();
    let (low, high) = (quantile(&places, 0.1), quantile(&places, 0.9));
    if high > 1.5 * low
        && let Some(line) = through(points, (high - low) / 4.0)
    {
        return line;
    }
    let ratio = |&(x, y): &Point| y / known.at(x).max(1e-9);
    let scale = quantile(&points.iter().map(ratio).collect::<Vec<_>>(), 0.5);
    Line {
        base: known.base * scale,
        slope: known.slope * scale,
    }
}

/// The line whose slope is the median slope between points at least `apart` in x; `None` unless
/// that slope is positive.
fn through(points: &[Point], apart: f32) -> Option<Line> {
    let mut slopes = Vec::new();
    for (at, (x, y)) in points.iter().enumerate() {
        for (other_x, other_y) in &points[at + 1..] {
            if (other_x - x).abs() >= apart {
                slopes.push((other_y - y) / (other_x - x));
            }
        }
    }
    if slopes.is_empty() {
        return None;
    }
    let slope = quantile(&slopes, 0.5);
    let rests: Vec<f32> = points.iter().map(|(x, y)| y - slope * x).collect();
    let base = quantile(&rests, 0.5).max(0.0);
    (slope > 0.0).then_some(Line { base, slope })
}

/// The value below which a `share` of the values lie. `values` must not be empty.
fn quantile(values: &[f32], share: f32) -> f32 {
    let mut values = values.to_vec();
    let at = ((values.len() - 1) as f32 * share).round() as usize;
    *values.select_nth_unstable_by(at, f32::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generator of numbers in [0, 1), the same ones in each run.
    fn noise() -> impl FnMut() -> f32 {
        let mut state = 1u32;
        move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32
        }
    }

    fn near(found: f32, truth: f32) {
        assert!((found / truth - 1.0).abs() < 0.1, "{found} is not {truth}");
    }

    /// Responses of a replica that prefills 8000 tokens/s and takes 20 ms + 0.4 ms per sequence for
    /// a decode step, with noise of 10%; every `absurd`th one took a hundred times as long.
    fn answers(count: usize, absurd: usize) -> Answers {
        let (mut answers, mut noise) = (Answers::default(), noise());
        for n in 1..=count {
            let stall = if n % absurd == 0 { 100.0 } else { 1.0 };
            let mut off = || 0.9 + 0.2 * noise();
            let (off_prefill, off_decode) = (off() * stall, off() * stall);
            let (tokens, sequences) = (100.0 + 8000.0 * noise(), 1.0 + 60.0 * noise());
            answers.saw_first_token(tokens, (0.02 + tokens / 8000.0) * off_prefill);
            answers.saw_decode(sequences, (0.02 + 0.000_4 * sequences) * off_decode);
        }
        answers
    }

    /// The pace of a replica that is alone in its class.
    fn alone(answers: &Answers) -> Pace {
        Class::learn([answers].into_iter()).pace(answers)
    }

    #[test]
    fn a_pace_is_found_within_a_tenth() {
        let found = alone(&answers(64, usize::MAX));
        near(found.prefill_tokens_per_s, 8000.0);
        near(found.decode_s, 0.0204);
        near(found.decode_s + 9.0 * found.decode_s_per_sequence, 0.024);
        near(found.decode_s + 49.0 * found.decode_s_per_sequence, 0.040);
    }

    #[test]
    fn absurd_answers_do_no_harm() {
        let found = alone(&answers(640, 10));
        near(found.prefill_tokens_per_s, 8000.0);
        near(found.decode_s + 29.0 * found.decode_s_per_sequence, 0.032);
        let mut fast = answers(64, usize::MAX);
        for point in fast.prefill.iter_mut().step_by(9) {
            point.1 /= 100.0;
        }
        near(alone(&fast).prefill_tokens_per_s, 8000.0);
    }

    #[test]
    fn a_change_is_followed_within_the_window() {
        let mut changed = answers(64, usize::MAX);
        for n in 0..WINDOW {
            changed.saw_first_token(500.0 + n as f32, (500.0 + n as f32) / 1000.0);
        }
        near(alone(&changed).prefill_tokens_per_s, 1000.0);
    }

    #[test]
    fn answers_of_one_size_scale_what_is_known() {
        let mut same = Answers::default();
        for _ in 0..ENOUGH {
            same.saw_first_token(1000.0, 0.1);
            same.saw_decode(1.0, 0.02);
        }
        let found = alone(&same);
        near(found.prefill_tokens_per_s, 10_000.0);
        near(found.decode_s, 0.02);
        near(found.decode_s_per_sequence, 0.001);
    }

    #[test]
    fn replicas_that_are_alike_have_one_pace_and_slow_ones_their_own() {
        let mut all = [
            answers(64, usize::MAX),
            answers(40, 9),
            answers(30, 7),
            answers(64, 8),
        ];
        for (_, seconds) in all[3].prefill.iter_mut().chain(&mut all[3].decode) {
            *seconds *= 2.0;
        }
        let class = Class::learn(all.iter());
        let paces: Vec<Pace> = all.iter().map(|answers| class.pace(answers)).collect();
        assert_eq!(paces[0], paces[1]);
        assert_eq!(paces[0], paces[2]);
        let ratio = paces[0].prefill_tokens_per_s / paces[3].prefill_tokens_per_s;
        assert!((1.6..2.4).contains(&ratio), "{paces:?}");
        let ratio = paces[3].decode_s / paces[0].decode_s;
        assert!((1.6..2.4).contains(&ratio), "{paces:?}");
    }

    #[test]
    fn short_answers_of_alike_replicas_do_not_part_them() {
        // the prompts have a few tokens, so that a single step dominates the time: noise of 30% and
        // more
        let mut noise = noise();
        let mut one = |_| {
            let mut answers = Answers::default();
            for n in 0..ENOUGH {
                let off = 0.7 + 0.6 * noise();
                answers.saw_first_token(3.0 + (n % 4) as f32, 0.02 * off);
                answers.saw_decode(1.0 + (n % 5) as f32, 0.01 * off);
            }
            answers
        };
        let all: Vec<Answers> = (0..8).map(&mut one).collect();
        let class = Class::learn(all.iter());
        let first = class.pace(&all[0]);
        assert!(all.iter().all(|own| class.pace(own) == first));
    }

    #[test]
    fn a_class_answers_for_one_with_too_few() {
        let class = Class::learn([answers(40, 10), answers(40, 11)].iter());
        let few = class.pace(&answers(ENOUGH - 1, usize::MAX));
        near(few.prefill_tokens_per_s, 8000.0);
        assert_eq!(few, class.pace(&Answers::default()));
        assert_eq!(alone(&Answers::default()), Pace::default());
    }

    #[test]
    fn what_is_no_answer_is_left_out() {
        let mut answers = Answers::default();
        for wrong in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            answers.saw_first_token(10.0, wrong);
            answers.saw_decode(wrong, 1.0);
        }
        assert!(answers.prefill.is_empty() && answers.decode.is_empty());
    }
}
