//! Deterministic pseudo-random numbers: each is derived from a key, so that equal seeds give equal
//! runs.

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every bit of the key affects every
/// bit of the result.
pub(crate) fn mix(key: u64) -> u64 {
    let mut z = key.wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Combines two keys to one.
pub(crate) fn join(a: u64, b: u64) -> u64 {
    mix(mix(a) ^ b)
}

/// A number from the uniform distribution over [0, 1).
pub(crate) fn unit(key: u64) -> f64 {
    (mix(key) >> 11) as f64 / (1u64 << 53) as f64
}

/// A number from the standard normal distribution (Box-Muller).
pub(crate) fn normal(key: u64) -> f64 {
    let (a, b) = (1.0 - unit(join(key, 1)), unit(join(key, 2)));
    (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
}

/// Key of a sequence of tokens: equal sequences have equal keys.
pub(crate) fn of_tokens(tokens: &[u32]) -> u64 {
    tokens
        .iter()
        .fold(STEP, |key, token| join(key, u64::from(*token)))
}
