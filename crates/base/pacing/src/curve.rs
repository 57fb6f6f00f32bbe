//! A measured cost curve: the seconds of a step as a function of its number of tokens, its size.

/// Weight of the newest step in a moving average.
const FRESH: f64 = 0.25;
/// Number of mixed steps after which a size class without measurements expires and is measured
/// again.
const STALE: u64 = 512;
/// Number of size classes: one for each bit length of a `u32`, from 0 to 32.
const CLASSES: usize = u32::BITS as usize + 1;

/// Averages of one size class.
#[derive(Debug, Clone, Copy)]
struct Class {
    size: f64,
    seconds: f64,
    steps: u32,
    /// Count of mixed steps at its last measurement.
    seen: u64,
}

/// A point of the curve: size and seconds.
type Point = (f64, f64);

/// Seconds by size, in classes of 1, 2 to 3, 4 to 7, ... `now` counts mixed steps.
#[derive(Debug, Clone)]
pub(crate) struct CostCurve {
    classes: [Option<Class>; CLASSES],
    /// Number of steps of a class that are recorded before their average is used.
    sure: u32,
}

impl CostCurve {
    pub(crate) fn new(sure: u32) -> Self {
        Self {
            classes: [None; CLASSES],
            sure,
        }
    }

    /// Adds a measurement. If it is below half of the average, it replaces the average, so that an
    /// outlier does not outlast the next step of the class.
    pub(crate) fn add(&mut self, size: u32, seconds: f64, now: u64) {
        let class = &mut self.classes[bit_length(size)];
        let size = f64::from(size);
        let newest = Class {
            size,
            seconds,
            steps: 1,
            seen: now,
        };
        *class = Some(match *class {
            Some(old) if now - old.seen >= STALE => newest,
            Some(old) if seconds < old.seconds / 2.0 => Class {
                steps: old.steps.saturating_add(1),
                ..newest
            },
            Some(old) => Class {
                size: old.size + FRESH * (size - old.size),
                seconds: old.seconds + FRESH * (seconds - old.seconds),
                steps: old.steps.saturating_add(1),
                seen: now,
            },
            None => newest,
        });
    }

    /// Whether the class of `size` has an average of enough measurements that have not expired.
    pub(crate) fn knows(&self, size: u32, now: u64) -> bool {
        self.trusted(self.classes[bit_length(size)], now).is_some()
    }

    /// The measured points in ascending order of size.
    pub(crate) fn points(&self, now: u64) -> Points {
        let mut points = Points {
            points: [(0.0, 0.0); CLASSES],
            count: 0,
        };
        for class in self.classes {
            if let Some(class) = self.trusted(class, now) {
                points.points[points.count] = (class.size, class.seconds);
                points.count += 1;
            }
        }
        points
    }

    fn trusted(&self, class: Option<Class>, now: u64) -> Option<Class> {
        class.filter(|class| class.steps >= self.sure && now - class.seen < STALE)
    }
}

fn bit_length(number: u32) -> usize {
    (u32::BITS - number.leading_zeros()) as usize
}

/// The measured points of a curve, with interpolation.
#[derive(Debug)]
pub(crate) struct Points {
    points: [Point; CLASSES],
    count: usize,
}

impl Points {
    pub(crate) fn as_slice(&self) -> &[Point] {
        &self.points[..self.count]
    }

    /// The largest measured size; 0 without measurements.
    pub(crate) fn last(&self) -> f64 {
        self.as_slice().last().map_or(0.0, |point| point.0)
    }

    /// Seconds at `size`: interpolated between points, `below` before the first point, and
    /// extrapolated after the last one. With a single point the curve is flat, so that a larger
    /// size is tried.
    fn at(&self, size: f64, below: fn(Point, f64) -> f64) -> f64 {
        let points = self.as_slice();
        let Some((&first, &last)) = points.first().zip(points.last()) else {
            return 0.0;
        };
        if size <= first.0 {
            return below(first, size);
        }
        if let Some(pair) = points.windows(2).find(|pair| size <= pair[1].0) {
            return between(pair[0], pair[1], size);
        }
        match points {
            [.., before, _] => between(*before, last, size).max(last.1),
            _ => last.1,
        }
    }

    /// The cost of a number of decodes; below the smallest measured number the cost is constant.
    pub(crate) fn of_decodes(&self, decodes: f64) -> f64 {
        self.at(decodes, |first, _| first.1)
    }

    /// The cost of a number of prompt tokens; below the smallest measured number the cost is
    /// proportional, so that a smaller size is tried.
    pub(crate) fn of_prompts(&self, tokens: f64) -> f64 {
        self.at(tokens, |first, size| first.1 * size / first.0)
    }

    /// The most prompt tokens, up to `most`, that cost at most `seconds`.
    pub(crate) fn fitting(&self, seconds: f64, most: f64) -> f64 {
        if self.of_prompts(most) <= seconds {
            return most;
        }
        let mut above = (most, self.of_prompts(most));
        for &point in self.as_slice().iter().rev().filter(|point| point.0 < most) {
            if point.1 <= seconds {
                return crossing(point, above, seconds);
            }
            above = point;
        }
        crossing((0.0, 0.0), above, seconds)
    }
}

/// Seconds of `size` on the line through two points.
fn between(a: Point, b: Point, size: f64) -> f64 {
    a.1 + (b.1 - a.1) * (size - a.0) / (b.0 - a.0)
}

/// Size at which the line from `a` (at most `seconds`) to `b` (above) reaches `seconds`.
fn crossing(a: Point, b: Point, seconds: f64) -> f64 {
    a.0 + (b.0 - a.0) * (seconds - a.1) / (b.1 - a.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SURE: u32 = 2;

    fn curve(points: &[(u32, f64)]) -> CostCurve {
        let mut curve = CostCurve::new(SURE);
        for &(size, seconds) in points {
            for _ in 0..SURE {
                curve.add(size, seconds, 0);
            }
        }
        curve
    }

    #[test]
    fn a_class_counts_from_its_second_step_on_and_until_it_is_stale() {
        let mut curve = CostCurve::new(SURE);
        curve.add(40, 1.0, 7);
        assert!(!curve.knows(40, 7));
        curve.add(50, 2.0, 8);
        assert!(curve.knows(33, 8) && !curve.knows(64, 8));
        assert_eq!(curve.points(8).as_slice(), [(42.5, 1.25)]);
        assert!(curve.knows(40, 8 + STALE - 1) && !curve.knows(40, 8 + STALE));
        curve.add(40, 5.0, 8 + STALE);
        assert!(!curve.knows(40, 8 + STALE), "begun anew");
    }

    #[test]
    fn an_outlier_is_forgotten_with_the_next_step() {
        let mut curve = curve(&[(40, 1.0)]);
        curve.add(40, 100.0, 0);
        assert!(curve.points(0).as_slice()[0].1 > 20.0);
        curve.add(41, 1.1, 0);
        assert_eq!(curve.points(0).as_slice(), [(41.0, 1.1)]);
    }

    #[test]
    fn costs_are_linear_between_points_and_beyond() {
        let points = curve(&[(100, 2.0), (200, 3.0)]).points(0);
        let costs = [50.0, 100.0, 150.0, 400.0].map(|size| points.of_prompts(size));
        assert_eq!(costs, [1.0, 2.0, 2.5, 5.0]);
        assert_eq!(points.of_decodes(50.0), 2.0);
        let one = curve(&[(100, 2.0)]).points(0);
        assert_eq!(one.of_prompts(1e6), 2.0, "flat until there is a slope");
        let falling = curve(&[(100, 3.0), (200, 2.0)]).points(0);
        assert_eq!(
            falling.of_prompts(400.0),
            2.0,
            "no cost falls beyond what was measured"
        );
    }

    proptest! {
        #[test]
        fn what_fits_costs_no_more_and_one_token_more_does_not_fit(
            sizes in prop::collection::btree_set(1u32..14, 1..6),
            steps in prop::collection::vec(0.0..1.0f64, 6),
            seconds in 0.01..4.0f64,
            most in 1.0..20_000.0f64,
        ) {
            let mut cost = 0.0;
            let rising: Vec<_> = sizes.iter().zip(steps).map(|(size, step)| {
                cost += step + 1e-3;
                (1 << size, cost)
            }).collect();
            let points = curve(&rising).points(0);
            let fits = points.fitting(seconds, most);
            prop_assert!((0.0..=most).contains(&fits));
            prop_assert!(points.of_prompts(fits) <= seconds + 1e-9);
            prop_assert!(fits == most || points.of_prompts(fits + 1e-3) >= seconds - 1e-9);
        }
    }
}
