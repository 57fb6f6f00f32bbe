//! Gated short convolutions.

use serde::Deserialize;

use super::check_sizes;
use crate::error::DecoderError;

/// Maximum tokens that a convolution covers.
const LONGEST: usize = 16;

/// `out(c * convolution(b * x))`, where `b`, `c` and `x` are projections of the input. The
/// convolution is causal and depthwise. The state of a sequence consists of `b * x` of the last
/// `kernel - 1` tokens.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ConvolutionSpec {
    /// Width of each of the three projections.
    pub channels: usize,
    /// Number of tokens that the convolution covers.
    pub kernel: usize,
    /// Number of equal groups of channels. Ranks have whole groups.
    pub units: usize,
    /// The convolution and all projections have biases.
    #[serde(default)]
    pub bias: bool,
}

impl ConvolutionSpec {
    pub(super) fn check(&self) -> Result<(), DecoderError> {
        let Self {
            channels,
            kernel,
            units,
            ..
        } = *self;
        check_sizes(&[("mixer.channels", channels), ("mixer.units", units)])?;
        if !(2..=LONGEST).contains(&kernel) {
            return Err(DecoderError::Spec(format!(
                "mixer.kernel = {kernel} is not in 2..={LONGEST}"
            )));
        }
        if !channels.is_multiple_of(units) {
            return Err(DecoderError::Spec(format!(
                "mixer.units = {units} does not divide the {channels} channels"
            )));
        }
        Ok(())
    }
}
