//! Bounds of numbers in forms that llguidance handles correctly. llguidance stores bounds as
//! doubles with 64-bit integer parts, and accepts an excluded bound if both bounds have the same
//! integer part.

use serde_json::{Map, Number, Value};

use super::{mistyped, refused};
use crate::error::GrammarError;

/// Maximum `multipleOf`, and common multiple of several, in units of its last decimal: the
/// automaton has this number of states.
pub(super) const MOST_MULTIPLE: u128 = 10_000;
/// Bounds of numbers are clamped to this magnitude; bounds of integers to 64 bits.
const LARGEST: f64 = 1e17;
/// Smallest integer bound: the last double within 64 bits.
const SMALLEST_INTEGER: i128 = -(1 << 63) + 1024;
const LARGEST_INTEGER: i128 = i64::MAX as i128;
/// Maximum decimals of a bound; further ones are rounded inwards.
const DECIMALS: usize = 15;

/// The bounds of a schema.
struct Bounds {
    low: Option<Bound>,
    high: Option<Bound>,
}

#[derive(Clone, Copy, PartialEq)]
struct Bound {
    value: f64,
    /// The value as an integer, if it is one.
    integer: Option<i128>,
    excluded: bool,
}

/// The bounds of `schema` as alternatives for an `anyOf`, the last of which is the widest.
/// `integer`: the schema is for integers; `merged`: other schemas may add bounds.
pub(super) fn bounds(
    schema: &Map<String, Value>,
    integer: bool,
    merged: bool,
    place: &str,
) -> Result<Vec<Map<String, Value>>, GrammarError> {
    let bounds = Bounds {
        low: bound(schema, ["minimum", "exclusiveMinimum"], 1.0, place)?,
        high: bound(schema, ["maximum", "exclusiveMaximum"], -1.0, place)?,
    };
    match integer {
        true => Ok(vec![bounds.integers(place)?]),
        false => Ok(bounds.written(merged, place)?.alternatives()),
    }
}

/// The tighter of an inclusive and an exclusive bound; `inwards` is 1 for lower bounds, -1 for
/// upper ones.
fn bound(
    schema: &Map<String, Value>,
    [included, excluded]: [&str; 2],
    inwards: f64,
    place: &str,
) -> Result<Option<Bound>, GrammarError> {
    let read = |name: &str, excluded| match schema.get(name) {
        None => Ok(None),
        Some(value) => match value.as_number().and_then(|n| Bound::of(n, excluded)) {
            Some(bound) => Ok(Some(bound)),
            None => Err(mistyped(name, place, "a number", value)),
        },
    };
    let plain = read(included, false)?;
    // In draft 4, `exclusiveMinimum` and `exclusiveMaximum` are flags.
    let strict = match schema.get(excluded) {
        Some(Value::Bool(excluded)) => {
            return Ok(plain.map(|bound| Bound {
                excluded: *excluded,
                ..bound
            }));
        }
        _ => read(excluded, true)?,
    };
    Ok(match (plain, strict) {
        (Some(plain), Some(strict)) if inwards * (plain.value - strict.value) > 0.0 => Some(plain),
        (plain, strict) => strict.or(plain),
    })
}

impl Bound {
    fn of(number: &Number, excluded: bool) -> Option<Self> {
        let value = number.as_f64().filter(|value| value.is_finite())?;
        let integer = number.as_i128().or_else(|| {
            let whole = value.fract() == 0.0 && value.abs() < 1e30;
            whole.then_some(value as i128)
        });
        Some(Self {
            // Converts -0 to 0.
            value: value + 0.0,
            integer,
            excluded,
        })
    }
}

impl Bounds {
    fn integers(&self, place: &str) -> Result<Map<String, Value>, GrammarError> {
        let mut out = Map::new();
        let low = self.low.map(|low| match low.integer {
            Some(value) => value + i128::from(low.excluded),
            None => low.value.ceil() as i128,
        });
        let high = self.high.map(|high| match high.integer {
            Some(value) => value - i128::from(high.excluded),
            None => high.value.floor() as i128,
        });
        // The power of ten after a 19-digit bound exceeds 64 bits, so a missing bound farther from
        // zero is set.
        let wide = 10i128.pow(18);
        let low = low.or(high.filter(|&high| high <= -wide).map(|_| SMALLEST_INTEGER));
        let high = high.or(low.filter(|&low| low >= wide).map(|_| LARGEST_INTEGER));
        if let Some(low) = low {
            let low = double_from(low.max(SMALLEST_INTEGER), 1);
            if low > LARGEST_INTEGER {
                return Err(refused("minimum", place, "leaves no integer of 64 bits"));
            }
            out.insert("minimum".into(), json_integer(low));
        }
        if let Some(high) = high {
            // The largest integer is read as 2^63, which llguidance treats as the largest.
            let high = match high >= LARGEST_INTEGER {
                true => LARGEST_INTEGER,
                false => double_from(high, -1),
            };
            if high < SMALLEST_INTEGER {
                return Err(refused("maximum", place, "leaves no integer of 64 bits"));
            }
            out.insert("maximum".into(), json_integer(high));
        }
        Ok(out)
    }

    /// Converts the bounds to ones that llguidance handles correctly.
    fn written(mut self, merged: bool, place: &str) -> Result<Self, GrammarError> {
        let [low, high] = [self.low, self.high];
        let crossed = low
            .zip(high)
            .is_some_and(|(low, high)| low.value > high.value);
        if crossed {
            return Err(refused("minimum", place, "is larger than the maximum"));
        }
        let close = low.zip(high).is_some_and(|(low, high)| {
            low.value.trunc() == high.value.trunc() && low.value != high.value
        });
        self.low = low
            .map(|low| low.inside(1.0, high, merged || close, place))
            .transpose()?;
        self.high = high
            .map(|high| high.inside(-1.0, low, merged || close, place))
            .transpose()?;
        if let Some((low, high)) = self.low.zip(self.high)
            && low.value > high.value
        {
            return Err(refused("minimum", place, "is too close to the maximum"));
        }
        Ok(self)
    }

    /// The bounds, and narrower variants with fewer decimals: llguidance excludes 12.3 from the
    /// numbers up to 12.34.
    fn alternatives(&self) -> Vec<Map<String, Value>> {
        let shorter = |bound: Option<Bound>, sign: f64, digits: usize| {
            let bound = bound?;
            let far = bound.value * sign > 0.0 && decimals(bound.value) > digits;
            let value = if far {
                truncated(bound.value, digits)
            } else {
                bound.value
            };
            let excluded = bound.excluded && !far;
            Some(Bound {
                value,
                excluded,
                ..bound
            })
        };
        let ends = [self.low, self.high].into_iter().flatten();
        let longest = ends.map(|end| decimals(end.value)).max().unwrap_or(0);
        let mut all: Vec<Map<String, Value>> = Vec::new();
        for digits in 1..=longest.max(1) {
            let (low, high) = (
                shorter(self.low, -1.0, digits),
                shorter(self.high, 1.0, digits),
            );
            let empty = low.zip(high).is_some_and(|(low, high)| {
                low.value > high.value
                    || (low.value == high.value && (low.excluded || high.excluded))
            });
            let members = members(low, high);
            if all.last() != Some(&members) && (!empty || digits == longest.max(1)) {
                all.push(members);
            }
        }
        all
    }
}

fn members(low: Option<Bound>, high: Option<Bound>) -> Map<String, Value> {
    let named = [
        (low, ["minimum", "exclusiveMinimum"]),
        (high, ["maximum", "exclusiveMaximum"]),
    ];
    let named = named.into_iter().filter_map(|(bound, names)| {
        let bound = bound?;
        Some((
            names[usize::from(bound.excluded)].to_owned(),
            bound.value.into(),
        ))
    });
    named.collect()
}

impl Bound {
    /// The bound, or the next one inwards that is represented correctly. `direction` is 1 for lower
    /// bounds; `included`: make the bound inclusive.
    fn inside(
        self,
        direction: f64,
        other: Option<Self>,
        included: bool,
        place: &str,
    ) -> Result<Self, GrammarError> {
        let mut bound = self;
        if bound.value * direction > LARGEST {
            return Err(refused(
                if direction > 0.0 {
                    "minimum"
                } else {
                    "maximum"
                },
                place,
                "is beyond 1e17",
            ));
        }
        if bound.value * direction < -LARGEST {
            bound.value = -direction * LARGEST;
            bound.excluded = false;
        }
        // Equal bounds are unchanged: llguidance then detects that no number remains.
        let empty = other.is_some_and(|other| other.value == self.value);
        let long = decimals(bound.value) > DECIMALS;
        if !(long || (included && bound.excluded && !empty)) {
            return Ok(bound);
        }
        let digits = format!("{:.0}", bound.value.abs().trunc()).len();
        let decimals = match long {
            true => DECIMALS.saturating_sub(digits),
            false => DECIMALS.saturating_sub(digits).min(9),
        };
        let step = 10f64.powi(-(decimals as i32));
        let mut value = rounded(bound.value, decimals);
        while (value - bound.value) * direction < 0.0 || (bound.excluded && value == bound.value) {
            value = rounded(value + direction * step, decimals);
        }
        // Between very close bounds, use the value in the middle.
        if let Some(other) = other.filter(|other| (other.value - value) * direction < 0.0) {
            value = rounded(f64::midpoint(self.value, other.value), DECIMALS);
            let inside =
                (value - self.value) * direction > 0.0 && (other.value - value) * direction >= 0.0;
            if !inside {
                return Err(refused("minimum", place, "is too close to the maximum"));
            }
        }
        Ok(Self {
            value,
            integer: None,
            excluded: false,
        })
    }
}

/// Truncates a number to `digits` decimals.
fn truncated(value: f64, digits: usize) -> f64 {
    let text = value.to_string();
    let end = text
        .find('.')
        .map_or(text.len(), |dot| text.len().min(dot + 1 + digits));
    text[..end].parse().unwrap_or(value)
}

fn rounded(value: f64, decimals: usize) -> f64 {
    format!("{value:.decimals$}").parse().unwrap_or(value)
}

/// Number of decimals in the shortest text of a number.
fn decimals(value: f64) -> usize {
    let text = value.to_string();
    text.split_once('.')
        .map_or(0, |(_, decimals)| decimals.len())
}

/// The next integer in `direction` that a double represents exactly.
fn double_from(mut value: i128, direction: i128) -> i128 {
    while value as f64 as i128 != value {
        value += direction;
    }
    value
}

fn json_integer(value: i128) -> Value {
    i64::try_from(value).unwrap_or(i64::MAX).into()
}

/// A `multipleOf` step: `coefficient * 10^-decimals`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Multiple {
    coefficient: u128,
    decimals: u32,
}

impl Multiple {
    /// Parses the value of a `multipleOf`.
    pub(super) fn of(value: &Value, place: &str) -> Result<Self, GrammarError> {
        let mistyped = |expected: &str| mistyped("multipleOf", place, expected, value);
        let number = value
            .as_f64()
            .filter(|number| number.is_finite() && *number > 0.0);
        let number = number.ok_or_else(|| mistyped("a number above 0"))?;
        let text = number.to_string();
        let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
        let coefficient = format!("{whole}{decimals}").parse::<u128>();
        let multiple = Self {
            coefficient: coefficient.unwrap_or(u128::MAX),
            decimals: decimals.len() as u32,
        };
        let (small, whole) = multiple.reduced();
        if small.coefficient > MOST_MULTIPLE || whole > MOST_MULTIPLE {
            let most = format!("at most {MOST_MULTIPLE} units of its last decimal");
            return Err(mistyped(&most));
        }
        // llguidance scales the step by repeated multiplication, which must give the exact
        // coefficient.
        let mut scaled = number;
        for _ in 0..multiple.decimals {
            scaled *= 10.0;
        }
        match scaled == multiple.coefficient as f64 {
            true => Ok(small),
            false => Err(mistyped("a number whose decimals a double keeps")),
        }
    }

    /// The step without trailing zeros, and its integer part.
    fn reduced(mut self) -> (Self, u128) {
        while self.decimals > 0 && self.coefficient.is_multiple_of(10) {
            self.coefficient /= 10;
            self.decimals -= 1;
        }
        let scale = 10u128.checked_pow(self.decimals).unwrap_or(u128::MAX);
        (self, self.coefficient / scale)
    }

    /// The step, and its multiples with fewer decimals: with the step alone, llguidance excludes
    /// their shortest text.
    pub(super) fn alternatives(self) -> Vec<Value> {
        let fewer = (1..self.decimals).filter_map(|decimals| {
            let unit = Self {
                coefficient: 1,
                decimals,
            };
            let common = self.common(unit)?.reduced().0;
            common.value()
        });
        let mut all: Vec<Value> = fewer.collect();
        all.extend(self.value());
        all.dedup();
        all
    }

    fn value(self) -> Option<Value> {
        let text = format!("{}e-{}", self.coefficient, self.decimals);
        Some(text.parse::<f64>().ok()?.into())
    }

    /// The least common multiple of both steps; `None` if it is too large for llguidance.
    pub(super) fn common(self, other: Self) -> Option<Self> {
        let decimals = self.decimals.max(other.decimals);
        let scaled = |multiple: Self| {
            let scale = 10u128.checked_pow(decimals - multiple.decimals)?;
            multiple.coefficient.checked_mul(scale)
        };
        let (a, b) = (scaled(self)?, scaled(other)?);
        let product = a.checked_mul(b)?;
        let coefficient = product / divisor(a, b);
        let held = product <= u128::from(u32::MAX) && coefficient <= MOST_MULTIPLE;
        held.then_some(Self {
            coefficient,
            decimals,
        })
    }
}

fn divisor(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Whether llguidance, which stores numbers as doubles, writes a constant unchanged.
pub(super) fn is_exact(number: &Number) -> bool {
    match number.as_i128() {
        Some(value) => value as f64 as i128 == value && value != i128::from(i64::MIN),
        None => number.as_f64().is_some_and(f64::is_finite),
    }
}
