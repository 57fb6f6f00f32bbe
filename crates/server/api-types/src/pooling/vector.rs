//! Arithmetic on the vectors of pooled requests, and their JSON.

use super::Encoding;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The first `dimensions` numbers of a vector, scaled to length 1 with `normalize`. A vector of
/// zeros is returned unchanged.
pub fn trimmed(mut vector: Vec<f32>, dimensions: Option<usize>, normalize: bool) -> Vec<f32> {
    vector.truncate(dimensions.unwrap_or(usize::MAX));
    let length = length(&vector);
    if normalize && length > 0.0 {
        let scaled = |x: &mut f32| *x = (f64::from(*x) / length) as f32;
        vector.iter_mut().for_each(scaled);
    }
    vector
}

/// The cosine of the angle between two vectors of equal size; 0 if one of them is all zeros.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let product = |(x, y): (&f32, &f32)| f64::from(*x) * f64::from(*y);
    let dot: f64 = a.iter().zip(b).map(product).sum();
    match length(a) * length(b) {
        0.0 => 0.0,
        lengths => (dot / lengths) as f32,
    }
}

/// Converts a logit to a probability.
pub fn sigmoid(logit: f32) -> f32 {
    (1.0 / (1.0 + f64::from(-logit).exp())) as f32
}

fn length(vector: &[f32]) -> f64 {
    let squares = vector.iter().map(|x| f64::from(*x) * f64::from(*x));
    squares.sum::<f64>().sqrt()
}

impl Encoding {
    /// A vector as a JSON value.
    pub fn json(self, vector: &[f32]) -> String {
        match self {
            // Numbers of a vector are finite, and always serialise.
            Self::Float => serde_json::to_string(vector).unwrap_or_default(),
            Self::Base64 => {
                let bytes: Vec<[u8; 4]> = vector.iter().map(|x| x.to_le_bytes()).collect();
                format!("\"{}\"", base64(bytes.as_flattened()))
            }
        }
    }
}

/// Base64 with padding (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * i)) as usize & 63];
            text.push(if i <= chunk.len() {
                char::from(digit)
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors of RFC 4648.
    #[test]
    fn base64_is_padded() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(Encoding::Base64.json(&[1.0]), "\"AACAPw==\"");
        assert_eq!(Encoding::Float.json(&[0.1, -2.0]), "[0.1,-2.0]");
    }

    #[test]
    fn a_shortened_vector_has_length_one_again() {
        assert_eq!(trimmed(vec![3.0, 4.0, 9.0], Some(2), true), [0.6, 0.8]);
        assert_eq!(trimmed(vec![3.0, 4.0, 9.0], Some(2), false), [3.0, 4.0]);
        assert_eq!(trimmed(vec![0.0; 2], None, true), [0.0; 2]);
        assert_eq!(cosine(&[1.0, 0.0], &[-3.0, 0.0]), -1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 0.0]), 0.0);
        assert_eq!((sigmoid(0.0), sigmoid(-1000.0)), (0.5, 0.0));
    }
}
