//! Element types of stored tensors.

use std::fmt;

/// Storage format of a tensor's elements. Quantised types pack a fixed number of elements of one
/// row into a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    F32,
    F16,
    BF16,
    /// 32 elements: f16 scale, 32 signed bytes.
    Q8_0,
    /// 32 elements: f16 scale, 16 bytes of codes 0..15 with zero point 8.
    Q4_0,
    /// 32 elements: f16 scale, f16 minimum, 16 bytes of codes 0..15.
    Q4_1,
    /// Like [`DType::Q4_0`], plus 4 bytes after the scale that hold the fifth bit of each code; the
    /// zero point is 16.
    Q5_0,
    /// Like [`DType::Q4_1`], plus 4 bytes after the minimum that hold the fifth bit of each code.
    Q5_1,
    /// 32 elements: f16 scale, 16 bytes of 4-bit indices into a table of 16 factors.
    Iq4Nl,
    /// 32 elements: a power-of-two scale with bias 127 in one byte, 16 bytes of 4-bit floating
    /// point (OCP Microscaling's E2M1).
    Mxfp4,
    /// Unsigned bytes: components of formats with several tensors per matrix.
    U8,
    /// 8-bit floating point (OCP's E4M3: 4 exponent bits, 3 mantissa bits, no infinities). Scales
    /// are in a separate tensor.
    F8E4M3,
    /// Powers of two (OCP Microscaling's E8M0: an exponent with bias 127; 255 is NaN): scales.
    F8E8M0,
    /// Signed integers: codes, packed codes, indices and shapes. None of them are weights by
    /// themselves.
    I8,
    I32,
    I64,
    /// 256 elements: f16 scale and minimum, eight 6-bit scale and minimum pairs, 128 bytes of 4-bit
    /// codes.
    Q4K,
    /// Like [`DType::Q4K`], plus 32 bytes that hold the fifth bit of each code.
    Q5K,
    /// 256 elements: low 4 bits, high 2 bits, sixteen signed 8-bit scales, f16 scale; codes have
    /// zero point 32.
    Q6K,
}

impl DType {
    pub const ALL: [Self; 19] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Iq4Nl,
        Self::Mxfp4,
        Self::U8,
        Self::F8E4M3,
        Self::F8E8M0,
        Self::I8,
        Self::I32,
        Self::I64,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Elements per block; 1 for unquantised types.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32
            | Self::F16
            | Self::BF16
            | Self::U8
            | Self::F8E4M3
            | Self::F8E8M0
            | Self::I8
            | Self::I32
            | Self::I64 => 1,
            Self::Q8_0
            | Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Iq4Nl
            | Self::Mxfp4 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::U8 | Self::I8 | Self::F8E4M3 | Self::F8E8M0 => 1,
            Self::Mxfp4 => 17,
            Self::Q8_0 => 34,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Bytes of `elements` consecutive elements; `None` if they do not fill whole blocks or the
    /// size overflows.
    pub const fn bytes_for(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_len()) {
            return None;
        }
        (elements / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Name used by GGUF tools, and in errors and listings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Iq4Nl => "IQ4_NL",
            Self::Mxfp4 => "MXFP4",
            Self::U8 => "U8",
            Self::F8E4M3 => "F8_E4M3",
            Self::F8E8M0 => "F8_E8M0",
            Self::I8 => "I8",
            Self::I32 => "I32",
            Self::I64 => "I64",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// The type with this code in a GGUF tensor table, if it is supported.
    pub(crate) const fn from_gguf(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            20 => Self::Iq4Nl,
            30 => Self::BF16,
            39 => Self::Mxfp4,
            _ => return None,
        })
    }

    /// ggml's name of a code in a GGUF tensor table that is not supported.
    pub(crate) fn name_in_gguf(id: u32) -> String {
        let name = match id {
            9 => "Q8_1",
            10 => "Q2_K",
            11 => "Q3_K",
            15 => "Q8_K",
            16 => "IQ2_XXS",
            17 => "IQ2_XS",
            18 => "IQ3_XXS",
            19 => "IQ1_S",
            21 => "IQ3_S",
            22 => "IQ2_S",
            23 => "IQ4_XS",
            24 => "I8",
            25 => "I16",
            26 => "I32",
            27 => "I64",
            28 => "F64",
            29 => "IQ1_M",
            34 => "TQ1_0",
            35 => "TQ2_0",
            _ => return format!("number {id}"),
        };
        name.to_owned()
    }

    /// The type with this name in a safetensors header, if it is supported.
    pub(crate) fn from_safetensors(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.block_len() == 1 && dtype.name() == name)
    }

    /// Names of all supported types, for error messages.
    pub(crate) fn supported() -> String {
        Self::ALL.map(Self::name).join(" ")
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
