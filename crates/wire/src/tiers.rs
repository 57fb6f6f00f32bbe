use super::FrameError;
use super::fields::Fields;
use super::writer::FrameWriter;

/// Prompt tokens of one request that came from behind the pool, by the kind of their tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierTokens {
    pub ram: u32,
    pub disk: u32,
    pub remote: u32,
}

impl TierTokens {
    /// All of them. Wide, because a peer may send any three numbers.
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

/// Which kinds of tiers stand behind the pool.
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

    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        let bits = f.u8("kv_tiers")?;
        if bits & !ALL_KINDS != 0 {
            return Err(f.refuse("kv_tiers", 1, bits, "0 to 7"));
        }
        Ok(Self {
            ram: bits & RAM != 0,
            disk: bits & DISK != 0,
            remote: bits & REMOTE != 0,
        })
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        w.u8(bit(self.ram, RAM) | bit(self.disk, DISK) | bit(self.remote, REMOTE));
    }
}

/// TIERS: what the tiers behind the pool have done since the engine's start, and how they stand.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TierReport {
    /// Prompt tokens that the pool did not have and the tiers were asked for.
    pub lookup_tokens: u64,
    pub decisions: Decisions,
    /// Blocks of the pool and of the RAM tier that eviction passes over.
    pub pinned_blocks: u32,
    /// In the order in which they are asked.
    pub tiers: Vec<TierStats>,
    /// Bytes of cache, and the part of the prompt tokens that would be computed with so much.
    /// Ascending.
    pub miss_curve: Vec<(u64, f64)>,
}

/// What was done about prefixes that a tier had, by the number of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Decisions {
    pub load: u64,
    pub compute: u64,
    /// Loaded from one end while the other was computed.
    pub both: u64,
}

/// One tier. All but `state`, `used_bytes` and `capacity_bytes` only grow.
#[derive(Debug, Clone, PartialEq)]
pub struct TierStats {
    /// `ram`, `disk:/var/kv`.
    pub name: String,
    pub kind: TierKind,
    pub state: TierState,
    pub used_bytes: u64,
    /// 0 is no bound, or none that is known.
    pub capacity_bytes: u64,
    /// Chunks that it was asked for and had.
    pub hits: u64,
    pub misses: u64,
    /// Prompt tokens that came from it.
    pub hit_tokens: u64,
    pub loaded_bytes: u64,
    pub stored_bytes: u64,
    pub errors: u64,
    pub evicted_chunks: u64,
    /// Found to be other than what was written, and put aside.
    pub quarantined_chunks: u64,
    /// Not written, because the tier was behind or its daily budget was spent.
    pub dropped_stores: u64,
    pub load: Durations,
    pub store: Durations,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TierKind {
    Ram = 1,
    Disk = 2,
    Remote = 3,
}

/// Whether a tier is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TierState {
    Serving = 0,
    /// It failed or stalled, and is left alone for a while.
    Skipped = 1,
    /// One attempt is under way that decides between the other two.
    Trying = 2,
}

/// How long transfers took: a histogram over [`DURATION_BOUNDS`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Durations {
    /// Finite, not negative.
    pub seconds: f64,
    /// How many took at most each bound and more than the one before; the last, more than all of
    /// them.
    pub counts: [u64; DURATION_BOUNDS.len() + 1],
}

/// Upper bounds of the buckets of [`Durations`], in seconds, inclusive.
pub const DURATION_BOUNDS: [f64; 16] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];

/// Name, kind, state, 11 numbers of 8 bytes and two histograms.
const SMALLEST_TIER: usize = 4 + 2 + 11 * 8 + 2 * (8 + 17 * 8);
const CURVE_POINT: usize = 16;

impl TierReport {
    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        let mut report = Self {
            lookup_tokens: f.u64("lookup_tokens")?,
            decisions: Decisions {
                load: f.u64("decided_load")?,
                compute: f.u64("decided_compute")?,
                both: f.u64("decided_both")?,
            },
            pinned_blocks: f.u32("pinned_blocks")?,
            ..Self::default()
        };
        for _ in 0..f.count("tiers", SMALLEST_TIER)? {
            report.tiers.push(TierStats::read(f)?);
        }
        for _ in 0..f.count("miss_curve", CURVE_POINT)? {
            report.miss_curve.push((f.u64("curve bytes")?, ratio(f)?));
        }
        Ok(report)
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) {
        w.u64(self.lookup_tokens);
        w.u64(self.decisions.load);
        w.u64(self.decisions.compute);
        w.u64(self.decisions.both);
        w.u32(self.pinned_blocks);
        w.count(self.tiers.len());
        self.tiers.iter().for_each(|tier| tier.write(w));
        w.count(self.miss_curve.len());
        for (bytes, ratio) in &self.miss_curve {
            w.u64(*bytes);
            w.f64(*ratio);
        }
    }
}

fn ratio(f: &mut Fields<'_>) -> Result<f64, FrameError> {
    let value = f.f64("curve ratio")?;
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err(f.refuse("curve ratio", 8, value, "0 to 1"))
    }
}

impl TierStats {
    /// A tier that serves and has done nothing.
    pub fn new(name: impl Into<String>, kind: TierKind) -> Self {
        Self {
            name: name.into(),
            kind,
            state: TierState::Serving,
            used_bytes: 0,
            capacity_bytes: 0,
            hits: 0,
            misses: 0,
            hit_tokens: 0,
            loaded_bytes: 0,
            stored_bytes: 0,
            errors: 0,
            evicted_chunks: 0,
            quarantined_chunks: 0,
            dropped_stores: 0,
            load: Durations::default(),
            store: Durations::default(),
        }
    }

    fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            name: f.string("tier name")?,
            kind: TierKind::read(f)?,
            state: TierState::read(f)?,
            used_bytes: f.u64("used_bytes")?,
            capacity_bytes: f.u64("capacity_bytes")?,
            hits: f.u64("hits")?,
            misses: f.u64("misses")?,
            hit_tokens: f.u64("hit_tokens")?,
            loaded_bytes: f.u64("loaded_bytes")?,
            stored_bytes: f.u64("stored_bytes")?,
            errors: f.u64("errors")?,
            evicted_chunks: f.u64("evicted_chunks")?,
            quarantined_chunks: f.u64("quarantined_chunks")?,
            dropped_stores: f.u64("dropped_stores")?,
            load: Durations::read(f, "load seconds", "load counts")?,
            store: Durations::read(f, "store seconds", "store counts")?,
        })
    }

    fn write(&self, w: &mut FrameWriter<'_>) {
        w.bytes(self.name.as_bytes());
        w.u8(self.kind as u8);
        w.u8(self.state as u8);
        for number in [
            self.used_bytes,
            self.capacity_bytes,
            self.hits,
            self.misses,
            self.hit_tokens,
            self.loaded_bytes,
            self.stored_bytes,
            self.errors,
            self.evicted_chunks,
            self.quarantined_chunks,
            self.dropped_stores,
        ] {
            w.u64(number);
        }
        self.load.write(w);
        self.store.write(w);
    }
}

impl TierKind {
    fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        match f.u8("tier kind")? {
            1 => Ok(Self::Ram),
            2 => Ok(Self::Disk),
            3 => Ok(Self::Remote),
            unknown => Err(f.refuse("tier kind", 1, unknown, "1 to 3")),
        }
    }
}

impl TierState {
    fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        match f.u8("tier state")? {
            0 => Ok(Self::Serving),
            1 => Ok(Self::Skipped),
            2 => Ok(Self::Trying),
            unknown => Err(f.refuse("tier state", 1, unknown, "0 to 2")),
        }
    }
}

impl Durations {
    fn read(
        f: &mut Fields<'_>,
        sum: &'static str,
        buckets: &'static str,
    ) -> Result<Self, FrameError> {
        let seconds = f.f64(sum)?;
        if !(seconds.is_finite() && seconds >= 0.0) {
            return Err(f.refuse(sum, 8, seconds, "finite numbers from 0"));
        }
        let mut counts = [0; DURATION_BOUNDS.len() + 1];
        for count in &mut counts {
            *count = f.u64(buckets)?;
        }
        Ok(Self { seconds, counts })
    }

    fn write(&self, w: &mut FrameWriter<'_>) {
        w.f64(self.seconds);
        self.counts.iter().for_each(|count| w.u64(*count));
    }
}
