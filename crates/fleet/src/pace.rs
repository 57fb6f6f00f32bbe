//! The pace of a replica, learned from its answers. Pure.
//!
//! Both relations are lines: seconds to the first token over the tokens to compute before it, and
//! seconds of a decode step over the sequences in it. Each is fitted to the last answers by medians
//! (Theil, 1950; Sen, 1968), which a few absurd values do not move.

use std::collections::VecDeque;

use penstock_routing::Pace;

/// Answers that count: few enough to follow a change within them.
const WINDOW: usize = 64;
/// Fewer prove nothing.
const ENOUGH: usize = 8;
/// Points of a class that are fitted.
const CLASS_POINTS: usize = 128;

/// An answer: (tokens or sequences, seconds).
pub(crate) type Point = (f32, f32);

/// The last answers of a replica.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answers {
    pub prefill: VecDeque<Point>,
    pub decode: VecDeque<Point>,
}

impl Answers {
    /// The first token came `seconds` after the request was sent, behind `tokens` to compute.
    pub(crate) fn saw_first_token(&mut self, tokens: f32, seconds: f32) {
        push(&mut self.prefill, (tokens, seconds));
    }

    /// Tokens came `seconds` apart while `sequences` were computed.
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

/// The pace of a replica from its own answers; where they are too few `class` answers for it.
pub(crate) fn pace(own: &Answers, class: Pace) -> Pace {
    let mut pace = class;
    let of = |points: &VecDeque<Point>| points.iter().copied().collect::<Vec<_>>();
    learn(&mut pace, &of(&own.prefill), &of(&own.decode));
    pace
}

/// The pace of a class of replicas: from the answers of all of them.
pub(crate) fn class_pace<'a>(all: impl Iterator<Item = &'a Answers> + Clone) -> Pace {
    let mut pace = Pace::default();
    let spread = |points: Vec<Point>| {
        let step = points.len().div_ceil(CLASS_POINTS).max(1);
        points.into_iter().step_by(step).collect::<Vec<_>>()
    };
    let prefill = all.clone().flat_map(|one| one.prefill.iter().copied());
    let decode = all.flat_map(|one| one.decode.iter().copied());
    learn(
        &mut pace,
        &spread(prefill.collect()),
        &spread(decode.collect()),
    );
    pace
}

/// Replaces what the points show; the rest stays.
fn learn(pace: &mut Pace, prefill: &[Point], decode: &[Point]) {
    if prefill.len() >= ENOUGH {
        let known = Line {
            base: 0.0,
            slope: 1.0 / pace.prefill_tokens_per_s,
        };
        let line = fit(prefill, known);
        pace.prefill_tokens_per_s = (1.0 / line.slope).clamp(1.0, 1e7);
    }
    if decode.len() >= ENOUGH {
        let known = Line {
            base: pace.decode_s,
            slope: pace.decode_s_per_sequence,
        };
        let line = fit(decode, known);
        pace.decode_s = line.base.clamp(1e-6, 60.0);
        pace.decode_s_per_sequence = line.slope.clamp(0.0, 10.0);
    }
}

/// `base + slope * x`.
#[derive(Debug, Clone, Copy)]
struct Line {
    base: f32,
    slope: f32,
}

/// The line through the points. Where their places are too close together to show a slope, the
/// known line is scaled to their height.
fn fit(points: &[Point], known: Line) -> Line {
    let places: Vec<f32> = points.iter().map(|(x, _)| *x).collect();
    let (low, high) = (quantile(&places, 0.1), quantile(&places, 0.9));
    if high > 1.5 * low
        && let Some(line) = through(points, (high - low) / 4.0)
    {
        return line;
    }
    let ratio = |&(x, y): &Point| y / (known.base + known.slope * x).max(1e-9);
    let scale = quantile(&points.iter().map(ratio).collect::<Vec<_>>(), 0.5);
    Line {
        base: known.base * scale,
        slope: known.slope * scale,
    }
}

/// Median of the slopes between points at least `apart`; `None` unless it rises.
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

/// The value below which that share of at least one value is.
fn quantile(values: &[f32], share: f32) -> f32 {
    let mut values = values.to_vec();
    let at = ((values.len() - 1) as f32 * share).round() as usize;
    *values.select_nth_unstable_by(at, f32::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers in [0, 1), always the same ones.
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

    /// Answers of a replica of 8000 tokens/s and 20 ms + 0.4 ms for each sequence, within 10%;
    /// every `absurd`th took a hundred times as long.
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

    #[test]
    fn a_pace_is_found_within_a_tenth() {
        let found = pace(&answers(64, usize::MAX), Pace::default());
        near(found.prefill_tokens_per_s, 8000.0);
        near(found.decode_s + 10.0 * found.decode_s_per_sequence, 0.024);
        near(found.decode_s + 50.0 * found.decode_s_per_sequence, 0.040);
    }

    #[test]
    fn absurd_answers_do_no_harm() {
        let found = pace(&answers(640, 10), Pace::default());
        near(found.prefill_tokens_per_s, 8000.0);
        near(found.decode_s + 30.0 * found.decode_s_per_sequence, 0.032);
        let mut fast = answers(64, usize::MAX);
        for point in fast.prefill.iter_mut().step_by(9) {
            point.1 /= 100.0;
        }
        near(pace(&fast, Pace::default()).prefill_tokens_per_s, 8000.0);
    }

    #[test]
    fn a_change_is_followed_within_the_window() {
        let mut changed = answers(64, usize::MAX);
        for n in 0..WINDOW {
            changed.saw_first_token(500.0 + n as f32, (500.0 + n as f32) / 1000.0);
        }
        near(pace(&changed, Pace::default()).prefill_tokens_per_s, 1000.0);
    }

    #[test]
    fn answers_of_one_size_scale_what_is_known() {
        let mut same = Answers::default();
        for _ in 0..ENOUGH {
            same.saw_first_token(1000.0, 0.1);
            same.saw_decode(1.0, 0.021);
        }
        let found = pace(&same, Pace::default());
        near(found.prefill_tokens_per_s, 10_000.0);
        near(found.decode_s, 0.02);
        near(found.decode_s_per_sequence, 0.001);
    }

    #[test]
    fn a_class_answers_for_one_with_too_few() {
        let class = class_pace([answers(40, 10), answers(40, 11)].iter());
        near(class.prefill_tokens_per_s, 8000.0);
        let few = answers(ENOUGH - 1, usize::MAX);
        assert_eq!(pace(&few, class), class);
        assert_eq!(class_pace([].iter()), Pace::default());
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
