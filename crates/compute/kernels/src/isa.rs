//! The instruction set of the kernels: detected once at run time; a flag may select a lower one.

use std::fmt;
use std::str::FromStr;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// Prefetches the cache line at an address into the L2 cache; any address is safe.
#[inline(always)]
pub(crate) fn prefetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// An instruction set for which every kernel exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, any CPU.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F/BW/VL/DQ with VNNI and BF16.
    Avx512,
    /// `Avx512` with AMX tiles of 8-bit integers and bf16.
    Amx,
}

impl Isa {
    /// The best set that this CPU has and the system permits.
    pub fn detect() -> Self {
        Self::all()
            .into_iter()
            .rev()
            .find(|isa| isa.available())
            .unwrap_or(Self::Portable)
    }

    /// Every set, lowest first.
    pub fn all() -> [Self; 4] {
        [Self::Portable, Self::Avx2, Self::Avx512, Self::Amx]
    }

    /// The instruction set for code without AMX tiles: AMX covers matrix products and attention
    /// only.
    pub(crate) fn vectors(self) -> Self {
        if self == Self::Amx {
            Self::Avx512
        } else {
            self
        }
    }

    /// Whether this CPU can run the kernels of this set. The crate's unit tests emulate the tile
    /// unit on a CPU without one.
    pub fn available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
                    && is_x86_feature_detected!("avx512bf16")
                    && is_x86_feature_detected!("f16c")
                    && is_x86_feature_detected!("fma")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Amx => Self::Avx512.available() && (cfg!(test) || tiles_permitted()),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Spelling in flags and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        }
    }
}

/// Whether the CPU has tiles of 8-bit integers and bf16 and Linux permits this process to use them.
/// Requested once for all threads (Linux, `Documentation/arch/x86/xstate.rst`).
#[cfg(target_arch = "x86_64")]
pub(crate) fn tiles_permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| {
        /// AMX-BF16, AMX-TILE and AMX-INT8.
        const TILES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
        let features = std::arch::x86_64::__cpuid_count(7, 0).edx;
        features & TILES == TILES && request_tiles()
    })
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn request_tiles() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and changes no memory of this process.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_arch_prctl,
            ARCH_REQ_XCOMP_PERM,
            XFEATURE_XTILEDATA,
        )
    };
    answer == 0
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn request_tiles() -> bool {
    false
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error: an instruction set that does not exist or that this CPU lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IsaError(pub String);

impl fmt::Display for IsaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for IsaError {}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Self, IsaError> {
        let isa = Self::all()
            .into_iter()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| {
                IsaError(format!(
                    "instruction set {name:?} is unknown; known: portable, avx2, avx512, amx"
                ))
            })?;
        if isa.available() {
            Ok(isa)
        } else {
            Err(IsaError(format!(
                "this machine lacks {name}; its best is {}",
                Self::detect()
            )))
        }
    }
}
