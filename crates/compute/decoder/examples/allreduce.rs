//! Benchmark: latency of back-to-back all-reduces over a tensor-parallel group in shared memory.
//!
//! `cargo run --release -p penstock-decoder --example allreduce -- DIRECTORY RANKS
//! NUMBERS:TIMES...`
//!
//! Each rank is a process with one thread, as under the `mp` executor. `DIRECTORY` should be in
//! memory (/dev/shm). Rank 0 prints one JSON line per `NUMBERS:TIMES`: NUMBERS f32 values are
//! reduced TIMES times. The sums are verified once per size.

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use penstock_collectives::Group;
use penstock_decoder::{Collectives, Joined};
use penstock_kernels::{Cpu, Isa};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const PATIENCE: Duration = Duration::from_secs(60);
const WARM: usize = 20;

struct Size {
    numbers: usize,
    times: usize,
}

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [directory, ranks, sizes @ ..] = words.as_slice() else {
        return Err("usage: allreduce DIRECTORY RANKS NUMBERS:TIMES...".into());
    };
    let (ranks, rank) = match ranks.split_once('/') {
        Some((ranks, rank)) => (ranks.parse()?, Some(rank.parse()?)),
        None => (ranks.parse()?, None),
    };
    let parsed: Vec<Size> = sizes.iter().map(|s| size(s)).collect::<Result<_, _>>()?;
    match rank {
        Some(rank) => sum(Path::new(directory), rank, ranks, &parsed),
        None => start(Path::new(directory), ranks, sizes, &parsed),
    }
}

fn size(text: &str) -> Result<Size, Box<dyn std::error::Error>> {
    let (numbers, times) = text
        .split_once(':')
        .ok_or_else(|| format!("{text:?} is not NUMBERS:TIMES"))?;
    Ok(Size {
        numbers: numbers.parse()?,
        times: times.parse()?,
    })
}

/// Creates the group's memory, runs the ranks, removes the memory.
fn start(directory: &Path, ranks: usize, sizes: &[String], parsed: &[Size]) -> Outcome {
    let path = directory.join(format!("penstock-allreduce-{}", std::process::id()));
    Group::create(&path, ranks, capacity(parsed))?;
    let program = std::env::current_exe()?;
    let mut children: Vec<Child> = Vec::new();
    for rank in 0..ranks {
        let place = format!("{ranks}/{rank}");
        children.push(
            Command::new(&program)
                .arg(&path)
                .arg(place)
                .args(sizes)
                .spawn()?,
        );
    }
    let mut failed = false;
    for child in &mut children {
        failed |= !child.wait()?.success();
    }
    std::fs::remove_file(&path)?;
    if failed {
        return Err("a rank failed".into());
    }
    Ok(())
}

fn capacity(sizes: &[Size]) -> usize {
    sizes.iter().map(|s| s.numbers).max().unwrap_or(0)
}

/// One rank: all sizes in turn.
fn sum(path: &Path, rank: usize, ranks: usize, sizes: &[Size]) -> Outcome {
    let cpu = Cpu::new(Isa::detect(), 1)?;
    let group = Group::join(path, rank, ranks, capacity(sizes), PATIENCE)?;
    let mut collectives = Joined {
        group: Some(Box::new(group)),
        before: None,
        after: None,
    };
    for size in sizes {
        check(&cpu, &mut collectives, rank, ranks, size.numbers)?;
        let laps = laps(&cpu, &mut collectives, size)?;
        if rank == 0 {
            println!(
                "{}",
                serde_json::json!({"numbers": size.numbers, "us": laps})
            );
        }
    }
    Ok(())
}

fn check(
    cpu: &Cpu,
    collectives: &mut Joined,
    rank: usize,
    ranks: usize,
    numbers: usize,
) -> Outcome {
    let mut x: Vec<f32> = (0..numbers)
        .map(|i| ((rank + 1) * (i % 7)) as f32)
        .collect();
    collectives.all_reduce(cpu, &mut x)?;
    let all = ranks * (ranks + 1) / 2;
    match x
        .iter()
        .enumerate()
        .find(|(i, v)| **v != (all * (i % 7)) as f32)
    {
        Some((i, v)) => Err(format!("number {i} of {numbers} is {v}").into()),
        None => Ok(()),
    }
}

/// Latency of each all-reduce in microseconds.
fn laps(
    cpu: &Cpu,
    collectives: &mut Joined,
    size: &Size,
) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let mut x = vec![0.0; size.numbers];
    let mut laps = Vec::with_capacity(size.times);
    for lap in 0..WARM + size.times {
        let begin = Instant::now();
        collectives.all_reduce(cpu, &mut x)?;
        if lap >= WARM {
            laps.push((begin.elapsed().as_nanos() as f64 / 10.0).round() / 100.0);
        }
    }
    Ok(laps)
}
