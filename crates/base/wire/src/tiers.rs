use super::FrameError;
use super::fields::Fields;
use super::writer::FrameWriter;

/// Prompt tokens of one request loaded from tiers, by kind of tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierTokens {
    pub ram: u32,
    pub disk: u32,
    pub remote: u32,
}

impl TierTokens {
    /// Sum over all tiers, as `u64`: a peer may send three numbers whose sum exceeds `u32`.
    pub fn total(&self) -> u64 {
        u64::from(self.ram) + u64::from(self.disk) + u64::from(self.remote)
    }

    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            ram: f.u32("ram tokens")?,
            disk: f.u32("disk tokens")?,
            remote: f.u32("remote tokens")?,
        })
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) {
        w.u32(self.ram);
        w.u32(self.disk);
        w.u32(self.remote);
    }
}

/// Kinds of tiers behind the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierKinds {
    pub ram: bool,
    pub disk: bool,
    pub remote: bool,
}

const RAM: u8 = 1;
const DISK: u8 = 2;
const REMOTE: u8 = 4;
const ALL_KINDS: u8 = RAM | DISK | REMOTE;

impl TierKinds {
    /// Whether there is any tier behind the pool.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// Bit set: 1 RAM, 2 disk, 4 remote.
    pub fn bits(&self) -> u8 {
        (u8::from(self.ram) * RAM) | (u8::from(self.disk) * DISK) | (u8::from(self.remote) * REMOTE)
    }

    /// The kinds in [`Self::bits`]; `None` if a bit is unknown.
    pub fn from_bits(bits: u8) -> Option<Self> {
        (bits & !ALL_KINDS == 0).then_some(Self {
            ram: bits & RAM != 0,
            disk: bits & DISK != 0,
            remote: bits & REMOTE != 0,
        })
    }

    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        let bits = f.u8("kv_tiers")?;
        Self::from_bits(bits).ok_or_else(|| f.refuse("kv_tiers", 1, bits, "0 to 7"))
    }
}
