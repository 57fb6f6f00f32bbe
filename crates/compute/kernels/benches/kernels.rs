//! Kernel benchmark: best of several runs, in GOP/s, of matrix multiplication and attention by
//! weight format and number of rows.
//!
//! `cargo bench -p penstock-kernels --bench kernels -- [isa [threads [form]]]`. The form
//! `attention` runs attention only.

use std::time::Instant;

use penstock_kernels::{
    Activations, Aligned, Angles, AttentionMask, AttentionPlan, Cpu, GroupRow, HeadColumns,
    HeadShape, Isa, KvLayout, KvPool, KvPosition, KvType, Linear, Mode, Packed, Rotation,
    RowSource, Scoring, Sequence, SequenceBlocks, WeightFormat,
};

/// Pseudo-random numbers from -0.5 to 0.5.
struct Noise;

impl RowSource for Noise {
    fn fill_f32(&self, row: usize, out: &mut [f32]) {
        let mut state = row as u32 * 747_796_405 + 1;
        for v in out {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *v = (state >> 8) as f32 / (1u32 << 24) as f32 - 0.5;
        }
    }

    fn fill_groups(&self, _: WeightFormat, _: usize, _: &mut GroupRow) -> bool {
        false
    }
}

fn best(mut run: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < 0.4 {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

/// Multiplies by the same matrix in each iteration (warm), or cycles through many matrices, so that
/// each one comes from memory as in a decode step (cold).
fn matmul(cpu: &Cpu, form: WeightFormat, m: usize, k: usize, n: usize, cold: bool) {
    let pack = || Linear {
        parts: vec![Packed::pack(cpu.threads(), form, n, k, &Noise)],
        bias: None,
    };
    let mut linears = vec![pack()];
    let bytes = linears[0].parts[0].bytes();
    while cold && linears.len() * bytes < 96 << 20 {
        linears.push(pack());
    }
    let (mut x, mut out, mut acts) = (vec![0.0; m * k], vec![0.0; m * n], Activations::default());
    Noise.fill_f32(3, &mut x);
    let convert =
        best(|| cpu.norm_quantize(&x, m, k, None, linears[0].activation_format(), &mut acts));
    let time = best(|| {
        linears
            .iter()
            .for_each(|l| cpu.matmul(l, &acts, &mut out, Mode::Store))
    }) / linears.len() as f64;
    println!(
        "{:5} {m:4} x {k:4} x {n:5} {} {:8.1} us  {:7.0} GOP/s  {:6.1} GB/s  conversion {:6.1} us",
        form.name(),
        if cold { "cold" } else { "warm" },
        time * 1e6,
        (2 * m * k * n) as f64 / time / 1e9,
        bytes as f64 / time / 1e9,
        convert * 1e6
    );
}

fn attention(cpu: &Cpu, rows: usize, context: usize) {
    let layout = KvLayout {
        layers: 1,
        kv_heads: 3,
        head_dim: 64,
        latent: None,
        block_size: 32,
        dtype: KvType::Bf16,
    };
    let mut pool = KvPool::new(layout, context.div_ceil(32));
    let table: Vec<i32> = (0..pool.blocks() as i32).collect();
    let blocks = SequenceBlocks {
        seen: 0..table.len(),
        writes_from: 0,
        table: table.into(),
    };
    let Ok(mut kv) = pool.lease(vec![blocks]) else {
        unreachable!("no transfers use the pool")
    };
    let width = (9 + 6) * 64;
    let mut qkv = Aligned::zeroed(context * width);
    Noise.fill_f32(5, &mut qkv);
    let cos_sin = vec![0.5; context * 64];
    let places: Vec<KvPosition> = (0..context)
        .map(|i| KvPosition {
            block: i / 32,
            offset: i % 32,
        })
        .collect();
    let rotation = Rotation {
        angles: Some(Angles {
            cos_sin: &cos_sin,
            dims: 64,
        }),
        ..Rotation::default()
    };
    let store = best(|| cpu.rotate_and_store(&mut qkv, 9, &rotation, &places, 0, &mut kv));
    let shape = HeadShape::whole(9, 3, 64);
    let sequence = Sequence {
        start: context - rows,
        rows: 0..rows,
    };
    let scoring = Scoring {
        seen: AttentionMask::All,
        scale: 0.125,
        softcap: None,
        sinks: None,
    };
    let mut out = vec![0.0; rows * 576];
    let mut plan = AttentionPlan::new(vec![sequence], shape, 1);
    let time = best(|| {
        let rows = HeadColumns {
            rows: &mut out,
            row: 576,
            head: 64,
            first: 0,
        };
        plan.run(cpu, &kv, 0, scoring, &qkv, width, rows)
    });
    let seen: usize = (context - rows + 1..=context).sum();
    println!(
        "attention {rows:4} rows over {context:5}  {:8.1} us  {:6.0} GFLOP/s  store {:.2} us a row",
        time * 1e6,
        (seen * 9 * 64 * 4) as f64 / time / 1e9,
        store * 1e6 / context as f64
    );
}

fn main() {
    // cargo adds --bench
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let isa = words
        .next()
        .map_or(Ok(Isa::detect()), |name| name.parse())
        .unwrap_or_else(|e| {
            eprintln!("{e}");
            std::process::exit(2)
        });
    let threads = words.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    let Ok(cpu) = Cpu::new(isa, threads) else {
        std::process::exit(1)
    };
    let wanted = words.next();
    println!("{isa}, {threads} thread(s)");
    for form in [
        WeightFormat::W4,
        WeightFormat::S4,
        WeightFormat::Z4,
        WeightFormat::Mx4,
        WeightFormat::W8,
        WeightFormat::Bf16,
        WeightFormat::F32,
    ] {
        if wanted.as_ref().is_some_and(|name| name != form.name()) {
            continue;
        }
        for (m, cold) in [
            (1, true),
            (8, true),
            (8, false),
            (16, false),
            (32, true),
            (32, false),
            (512, false),
        ] {
            matmul(&cpu, form, m, 576, 1536, cold);
        }
        matmul(&cpu, form, 32, 1536, 576, true);
        matmul(&cpu, form, 512, 1536, 576, false);
    }
    if wanted.is_none() {
        matmul(&cpu, WeightFormat::W8, 1, 576, 49152, true);
        matmul(&cpu, WeightFormat::W8, 32, 576, 49152, true);
    }
    if wanted.is_some_and(|name| name != "attention") {
        return;
    }
    for (rows, context) in [(1, 384), (1, 4096), (512, 512), (512, 2048)] {
        attention(&cpu, rows, context);
    }
}
