//! Short convolutions against f64, and against the same sequence divided into other steps.

use super::common::{Rng, bits, isas};
use penstock_kernels::{
    Columns, Cpu, Isa, SequenceStates, ShortConvolution, StateLayout, StateMemory,
};
use proptest::prelude::*;

/// A convolution with random taps, and the states of its sequences.
struct Machine {
    cpu: Cpu,
    kernel: usize,
    channels: usize,
    taps: Vec<f32>,
    bias: Option<Vec<f32>>,
    memory: StateMemory,
}

const LAYER: usize = 1;
const SLOTS: usize = 12;

impl Machine {
    fn new(isa: Isa, threads: usize, kernel: usize, units: usize, width: usize, seed: u64) -> Self {
        let mut rng = Rng(seed);
        let layout = StateLayout {
            layers: 3,
            units,
            numbers: (kernel - 1) * width,
        };
        let memory = StateMemory::new(layout, SLOTS);
        for slot in 0..SLOTS {
            // The former content of a slot must not matter.
            memory.handle().write(slot).unwrap().fill(0xff);
        }
        Self {
            cpu: Cpu::new(isa, threads).unwrap(),
            kernel,
            channels: units * width,
            taps: rng.vec(kernel * units * width, 1.0),
            bias: rng
                .next()
                .is_multiple_of(2)
                .then(|| rng.vec(units * width, 1.0)),
            memory,
        }
    }

    /// Runs the convolution on rows of `b`, `c` and `x` side by side.
    fn run(&mut self, sequences: Vec<SequenceStates>, rows: &[f32]) -> Vec<f32> {
        let (count, ld) = (rows.len() / (3 * self.channels), self.channels + 5);
        let mut out = vec![f32::NAN; count * ld];
        let convolution = ShortConvolution {
            kernel: self.kernel,
            taps: &self.taps,
            bias: self.bias.as_deref(),
        };
        let mut lease = self.memory.lease(sequences).unwrap();
        let columns = Columns {
            rows: &mut out,
            ld,
            first: 2,
        };
        self.cpu
            .short_convolution(&convolution, rows, LAYER, &mut lease, columns);
        lease.complete();
        let mut own = Vec::new();
        for row in out.chunks_exact(ld) {
            assert_eq!(
                (row[..2].to_vec(), row[ld - 3..].to_vec()),
                (vec![0.0; 2], vec![0.0; 3])
            );
            own.extend(&row[2..ld - 3]);
        }
        own
    }

    /// Bits of the state in a slot: of [`LAYER`], and of the other layers.
    fn state(&self, slot: usize) -> (Vec<u32>, Vec<u32>) {
        let layout = *self.memory.layout();
        let block = self.memory.handle().read(slot).unwrap();
        let numbers = block
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| u32::from_ne_bytes(*b));
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for (i, number) in numbers.enumerate() {
            let layer = i / layout.numbers % layout.layers;
            if layer == LAYER {
                &mut own
            } else {
                &mut others
            }
            .push(number);
        }
        (own, others)
    }
}

fn sequence(start: usize, rows: usize, from: Option<usize>, to: usize) -> SequenceStates {
    SequenceStates {
        start,
        rows,
        from,
        to,
        saves: Vec::new(),
    }
}

/// Taps .5, -1, 2; b * x = 1, 2, 3; c = 1, 1, 2. Computed with transformers 5.23.0 (models/lfm2).
#[test]
fn a_published_example() {
    for isa in isas() {
        let mut machine = Machine::new(isa, 1, 3, 1, 1, 0);
        (machine.taps, machine.bias) = (vec![0.5, -1.0, 2.0], None);
        let rows = [1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 2.0, 3.0];
        assert_eq!(
            machine.run(vec![sequence(0, 3, None, 4)], &rows),
            [2.0, 3.0, 9.0]
        );
        let state = machine.state(4).0;
        assert_eq!(state, [2.0f32, 3.0].map(f32::to_bits));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn rows_are_near_f64(
        kernel in prop_oneof![Just(3usize), 2usize..=16], units in 1usize..4, width in 1usize..150,
        rows in 1usize..60, threads in 1usize..4, seed in any::<u64>(),
    ) {
        let mut expected: Option<Vec<u32>> = None;
        for isa in isas() {
            let mut machine = Machine::new(isa, threads, kernel, units, width, seed);
            let channels = machine.channels;
            let x = Rng(!seed).vec(3 * rows * channels, 2.0);
            let got = machine.run(vec![sequence(0, rows, None, 3)], &x);
            let number = |row: usize, part: usize, channel: usize| {
                f64::from(x[(3 * row + part) * channels + channel])
            };
            for (i, &got) in got.iter().enumerate() {
                let (row, channel) = (i / channels, i % channels);
                let bias = machine.bias.as_ref().map_or(0.0, |bias| f64::from(bias[channel]));
                let (mut sum, mut largest) = (bias, bias.abs());
                for back in 0..kernel.min(row + 1) {
                    let tap = f64::from(machine.taps[(kernel - 1 - back) * channels + channel]);
                    let (b, x) = (number(row - back, 0, channel), number(row - back, 2, channel));
                    let term = tap * b * x;
                    sum += term;
                    largest += term.abs();
                }
                let gate = number(row, 1, channel);
                let bound = (kernel + 3) as f64 * f64::from(f32::EPSILON) * largest * gate.abs();
                let away = (f64::from(got) - gate * sum).abs();
                prop_assert!(away <= bound, "{} is {} away, over {}", got, away, bound);
            }
            let got = bits(&got);
            prop_assert_eq!(expected.get_or_insert_with(|| got.clone()), &got, "{}", isa);
        }
    }

    /// Rows and states do not depend on how a sequence is divided into steps, on the other
    /// sequences of a step, on whether a state is updated in place, or on a restart from a saved
    /// state.
    #[test]
    fn steps_do_not_change_bits(
        kernel in 2usize..6, units in 1usize..4, width in 1usize..90, rows in 2usize..70,
        threads in 1usize..4, seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        let isa = Isa::detect();
        let mut machine = Machine::new(isa, threads, kernel, units, width, seed);
        let row = 3 * machine.channels;
        let x = rng.vec(rows * row, 2.0);
        let whole = bits(&machine.run(vec![sequence(0, rows, None, 0)], &x));
        let (state, others) = machine.state(0);
        prop_assert!(others.iter().all(|&number| number == u32::MAX));

        let (mut got, mut start, mut from) = (Vec::<u32>::new(), 0, None);
        let mut saved = None;
        while start < rows {
            let length = 1 + rng.below(20.min(rows - start));
            let mut own = sequence(start, length, from, 1 + rng.below(2));
            if length > 1 && rng.next().is_multiple_of(2) {
                let after = 1 + rng.below(length - 1);
                own.saves.push((after, 3));
                saved = Some(start + after);
            }
            let own_rows = &x[start * row..(start + length) * row];
            let other = 1 + rng.below(40);
            let beside = rng.vec(other * row, 2.0);
            // Another sequence shares the state that this one reads.
            let shared = from.filter(|&from| from != own.to);
            let its_start = shared.map_or(0, |_| start);
            let mut two = vec![own.clone(), sequence(its_start, other, shared, 5)];
            let first = rng.below(2);
            let all = if first == 0 {
                [own_rows, &beside].concat()
            } else {
                two.reverse();
                [&beside, own_rows].concat()
            };
            let out = bits(&machine.run(two, &all));
            let skipped = first * other * machine.channels;
            got.extend(&out[skipped..][..length * machine.channels]);
            (start, from) = (start + length, Some(own.to));
        }
        prop_assert_eq!(&got, &whole);
        prop_assert_eq!(&machine.state(from.unwrap()).0, &state);
        if let Some(at) = saved {
            let again = machine.run(vec![sequence(at, rows - at, Some(3), 4)], &x[at * row..]);
            prop_assert_eq!(&bits(&again)[..], &whole[at * machine.channels..]);
            prop_assert_eq!(&machine.state(4).0, &state);
        }
    }
}
