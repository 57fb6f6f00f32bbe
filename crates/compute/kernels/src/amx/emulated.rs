//! Emulation of the AMX tile unit in plain Rust, after the pseudo-code of Intel's instruction set
//! reference.

use super::halves::HalfUnit;
use super::integers::IntegerUnit;
use super::{DEPTH, HEIGHT, HalfTiles, IntegerTiles, WIDTH};
use crate::activations::bf16_value;
use crate::isa::tiles_permitted;
use crate::packed::{GROUP, PANEL};

/// The CPU's AMX integer tiles if available, else the emulation.
pub(crate) enum Integers {}

impl IntegerTiles for Integers {
    const FEWEST: usize = IntegerUnit::FEWEST;

    unsafe fn configure(rows: usize) {
        assert!((1..=HEIGHT).contains(&rows), "{rows} rows in a tile");
        if tiles_permitted() {
            // SAFETY: the CPU has AMX.
            unsafe { IntegerUnit::configure(rows) }
        }
    }

    unsafe fn dots<const G: usize>(
        rows: usize,
        acts: (*const i8, usize),
        weights: *const i8,
        out: *mut i32,
        panels: usize,
    ) {
        assert!((1..=WIDTH).contains(&panels), "{panels} panels at once");
        // SAFETY: the caller upholds the contract of `dots`; the unit is used only if the CPU has
        // AMX.
        unsafe {
            if tiles_permitted() {
                IntegerUnit::dots::<G>(rows, acts, weights, out, panels);
            } else {
                dots::<G>(rows, acts, weights, out, panels);
            }
        }
    }

    unsafe fn release() {
        if tiles_permitted() {
            // SAFETY: the CPU has AMX.
            unsafe { IntegerUnit::release() }
        }
    }
}

/// # Safety
/// Same as for [`IntegerTiles::dots`].
unsafe fn dots<const G: usize>(
    rows: usize,
    (acts, stride): (*const i8, usize),
    weights: *const i8,
    out: *mut i32,
    panels: usize,
) {
    for tile in 0..panels * G {
        let (group, tile) = (tile % G * GROUP, tile * PANEL);
        for (row, feature) in (0..rows).flat_map(|row| (0..PANEL).map(move |f| (row, f))) {
            // SAFETY: by the contract of `dots`, each row has 32 `G` codes, and each group has 512
            // weights and 256 numbers of `out`.
            unsafe {
                let term = |i: usize| {
                    let weight = *weights.add(tile * GROUP + i / 4 * 64 + feature * 4 + i % 4);
                    i32::from(*acts.add(row * stride + group + i)) * i32::from(weight)
                };
                *out.add(tile * HEIGHT + row * PANEL + feature) = (0..GROUP).map(term).sum();
            }
        }
    }
}

/// The CPU's AMX bf16 tiles if available, else the emulation.
pub(crate) enum Halves {
    Unit(HalfUnit),
    Emulated(Box<Emulated>),
}

impl Default for Halves {
    fn default() -> Self {
        if tiles_permitted() {
            Self::Unit(HalfUnit::default())
        } else {
            Self::Emulated(Box::default())
        }
    }
}

impl HalfTiles for Halves {
    unsafe fn configure(&mut self, rows: usize, halves: bool) {
        assert!((1..=HEIGHT).contains(&rows), "{rows} rows in a tile");
        // SAFETY: the CPU has AMX, or the emulation is in use, which has no requirements.
        unsafe {
            match self {
                Self::Unit(unit) => unit.configure(rows, halves),
                Self::Emulated(unit) => unit.configure(rows, halves),
            }
        }
    }

    unsafe fn clear(&mut self) {
        // SAFETY: the caller upholds the contract of `clear`.
        unsafe {
            match self {
                Self::Unit(unit) => unit.clear(),
                Self::Emulated(unit) => unit.clear(),
            }
        }
    }

    unsafe fn load(&mut self, from: &[*const f32], stride: usize) {
        // SAFETY: the caller upholds the contract of `load`.
        unsafe {
            match self {
                Self::Unit(unit) => unit.load(from, stride),
                Self::Emulated(unit) => unit.load(from, stride),
            }
        }
    }

    unsafe fn add<const HALF: bool>(
        &mut self,
        left: (*const u16, usize),
        right: &[*const u8],
        stride: usize,
    ) {
        // SAFETY: the caller upholds the contract of `add`.
        unsafe {
            match self {
                Self::Unit(unit) => unit.add::<HALF>(left, right, stride),
                Self::Emulated(unit) => unit.add::<HALF>(left, right, stride),
            }
        }
    }

    unsafe fn store(&mut self, out: &[*mut f32], stride: usize) {
        // SAFETY: the caller upholds the contract of `store`.
        unsafe {
            match self {
                Self::Unit(unit) => unit.store(out, stride),
                Self::Emulated(unit) => unit.store(out, stride),
            }
        }
    }

    fn keep_awake(&mut self) {
        match self {
            Self::Unit(unit) => unit.keep_awake(),
            Self::Emulated(unit) => unit.keep_awake(),
        }
    }

    fn release(&mut self) {
        match self {
            Self::Unit(unit) => unit.release(),
            Self::Emulated(unit) => unit.release(),
        }
    }
}

type Row = [f32; PANEL];

/// Accumulators in memory. Initialised to NaN, so that a read before initialisation is noticed.
pub(crate) struct Emulated {
    /// 0 before `configure` and after `release`.
    rows: usize,
    halves: bool,
    sums: [[Row; HEIGHT]; WIDTH],
}

impl Default for Emulated {
    fn default() -> Self {
        Self {
            rows: 0,
            halves: false,
            sums: [[[f32::NAN; PANEL]; HEIGHT]; WIDTH],
        }
    }
}

impl HalfTiles for Emulated {
    unsafe fn configure(&mut self, rows: usize, halves: bool) {
        *self = Self {
            rows,
            halves,
            ..Self::default()
        };
    }

    unsafe fn clear(&mut self) {
        self.sums = [[[0.0; PANEL]; HEIGHT]; WIDTH];
    }

    unsafe fn load(&mut self, from: &[*const f32], stride: usize) {
        for (sums, from) in self.sums.iter_mut().zip(from) {
            for (row, sum) in sums[..self.rows].iter_mut().enumerate() {
                // SAFETY: the caller guarantees `self.rows` rows of 16 f32 in each tile of `from`.
                *sum = unsafe { from.byte_add(row * stride).cast::<Row>().read() };
            }
        }
    }

    unsafe fn add<const HALF: bool>(
        &mut self,
        (left, ld): (*const u16, usize),
        right: &[*const u8],
        stride: usize,
    ) {
        assert!(self.halves || !HALF, "half products were not configured");
        assert!(self.rows > 0, "not configured");
        assert!(right.len() <= WIDTH, "{} right sides", right.len());
        let pairs = if HALF { DEPTH / 4 } else { DEPTH / 2 };
        for (sums, right) in self.sums.iter_mut().zip(right) {
            for (row, sums) in sums[..self.rows].iter_mut().enumerate() {
                // SAFETY: the caller guarantees that `left` and `right` are readable tiles; the CPU
                // has AVX-512, which tiles require, emulated or not.
                unsafe { add_row(pairs, left.byte_add(row * ld), *right, stride, sums) }
            }
        }
    }

    unsafe fn store(&mut self, out: &[*mut f32], stride: usize) {
        for (sums, out) in self.sums.iter().zip(out) {
            for (row, sum) in sums[..self.rows].iter().enumerate() {
                // SAFETY: the caller guarantees space for `self.rows` rows of 16 f32 in each tile
                // of `out`.
                unsafe { out.byte_add(row * stride).cast::<Row>().write(*sum) }
            }
        }
    }

    fn keep_awake(&mut self) {
        self.sums = Self::default().sums;
    }

    fn release(&mut self) {
        self.rows = 0;
    }
}

/// Flushes subnormal numbers to zero.
#[inline(always)]
fn flushed(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE {
        0.0f32.copysign(x)
    } else {
        x
    }
}

/// One row of TDPBF16PS. Two chains of fused multiply-adds sum the even and the odd inputs; their
/// sum is added to `sums`.
///
/// # Safety
/// The CPU has FMA; `left` has `pairs` pairs of inputs and `right` has `pairs` lines.
#[target_feature(enable = "avx512f,fma")]
unsafe fn add_row(pairs: usize, left: *const u16, right: *const u8, stride: usize, sums: &mut Row) {
    let mut parts = [[0.0f32; PANEL]; 2];
    for k in 0..pairs {
        for (odd, part) in parts.iter_mut().enumerate() {
            for (feature, sum) in part.iter_mut().enumerate() {
                // SAFETY: the caller guarantees `pairs` pairs of inputs in `left` and `pairs` lines
                // in `right`.
                let (a, b) = unsafe {
                    let line = right.add(k * stride).cast::<u16>();
                    (
                        flushed(bf16_value(left.add(2 * k + odd).read_unaligned())),
                        flushed(bf16_value(line.add(2 * feature + odd).read_unaligned())),
                    )
                };
                *sum = flushed(a.mul_add(b, *sum));
            }
        }
    }
    for (feature, sum) in sums.iter_mut().enumerate() {
        let both = flushed(parts[0][feature] + parts[1][feature]);
        *sum = flushed(flushed(*sum) + both);
    }
}

/// Compares the CPU's AMX unit with the emulation. Skipped on a CPU without AMX.
mod tests {
    use super::*;

    fn noise(len: usize, seed: u32) -> Vec<u16> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16 & 0x83ff | 0x3c00) as u16
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn integers_are_those_of_the_cpu() {
        if !tiles_permitted() {
            println!("skipped: this CPU lacks AMX, or the system forbids it");
            return;
        }
        integers::<1>();
        integers::<2>();
        integers::<3>();
    }

    /// Integer tiles with all row and panel counts and padded row strides.
    fn integers<const G: usize>() {
        let signed = |len, seed| -> Vec<i8> { noise(len, seed).iter().map(|&x| x as i8).collect() };
        let stride = G * GROUP + 16;
        let (acts, weights) = (signed(HEIGHT * stride, 1), signed(WIDTH * G * 512, 2));
        for (rows, panels) in (1..=HEIGHT).flat_map(|rows| (1..=WIDTH).map(move |p| (rows, p))) {
            let mut want = vec![0i32; WIDTH * G * HEIGHT * PANEL];
            let mut got = want.clone();
            let (acts, weights) = ((acts.as_ptr(), stride), weights.as_ptr());
            // SAFETY: the CPU has the unit; rows have 32 G codes, and there are 4 G groups of
            // weights and of dots.
            unsafe {
                dots::<G>(rows, acts, weights, want.as_mut_ptr(), panels);
                IntegerUnit::configure(rows);
                IntegerUnit::dots::<G>(rows, acts, weights, got.as_mut_ptr(), panels);
                IntegerUnit::release();
            }
            assert_eq!(got, want, "{rows} rows, {panels} panels, {G} groups");
        }
    }

    /// Sums of full-depth products, and of half-depth products if `halves`, through load and store.
    fn sums<U: HalfTiles>(rows: usize, halves: bool) -> Vec<f32> {
        let (left, right) = (noise(HEIGHT * 40, 3), noise(WIDTH * 16 * 32, 4));
        let mut out = vec![0.0f32; WIDTH * HEIGHT * PANEL];
        let rights: Vec<*const u8> = right.chunks(512).map(|r| r.as_ptr().cast()).collect();
        let outs: Vec<*mut f32> = out.chunks_mut(256).map(|o| o.as_mut_ptr()).collect();
        let first: Vec<*const f32> = outs.iter().map(|o| o.cast_const()).collect();
        // SAFETY: tiles have 16 rows of 64 bytes, left ones at a stride of 80 bytes; the CPU has
        // the unit.
        unsafe {
            let mut unit = U::default();
            unit.configure(rows, halves);
            unit.clear();
            unit.add::<false>((left.as_ptr(), 80), &rights, 64);
            unit.store(&outs, 64);
            unit.clear();
            unit.load(&first[..3], 64);
            if halves {
                unit.add::<true>((left.as_ptr(), 80), &rights, 64);
            } else {
                unit.add::<false>((left.as_ptr(), 80), &rights, 64);
            }
            unit.store(&outs, 64);
            unit.release();
        }
        out
    }

    #[test]
    fn halves_are_those_of_the_cpu() {
        if !tiles_permitted() {
            println!("skipped: this CPU lacks AMX, or the system forbids it");
            return;
        }
        for (rows, halves) in (1..=HEIGHT).flat_map(|rows| [(rows, false), (rows, true)]) {
            let (want, got) = (
                sums::<Emulated>(rows, halves),
                sums::<HalfUnit>(rows, halves),
            );
            let same = got
                .iter()
                .zip(&want)
                .all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{rows} rows, halves {halves}");
        }
    }

    /// Compares two consecutive products with f64.
    #[test]
    fn emulated_halves_are_near_f64() {
        let (left, right) = (noise(HEIGHT * 40, 3), noise(WIDTH * 16 * 32, 4));
        let value = |bits: u16| f64::from(bf16_value(bits));
        for (rows, halves) in [(1, false), (5, true), (16, false), (16, true)] {
            // SAFETY: (for the calls below) the emulation requires AVX-512 only.
            if !crate::Isa::Avx512.available() {
                println!("skipped: this CPU lacks AVX-512");
                return;
            }
            let got = sums::<Emulated>(rows, halves);
            for (i, &got) in got.iter().enumerate() {
                let (tile, row, feature) = (i / 256, i / 16 % 16, i % 16);
                let dot = |inputs: usize| -> f64 {
                    let term = |k: usize| {
                        let weight = right[tile * 512 + k / 2 * 32 + feature * 2 + k % 2];
                        value(left[row * 40 + k]) * value(weight)
                    };
                    (0..inputs).map(term).sum()
                };
                let first = if tile < 3 { dot(32) } else { 0.0 };
                let second = if halves { dot(16) } else { dot(32) };
                let want = if row < rows { first + second } else { 0.0 };
                assert!(
                    (f64::from(got) - want).abs() < 1e-4,
                    "{rows} rows, tile {tile}, row {row}, feature {feature}: {got}, not {want}"
                );
            }
        }
    }
}
