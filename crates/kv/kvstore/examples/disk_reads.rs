//! How fast the disk tier reads: `disk_reads DIRECTORY [THREADS [PARTS]]`, in GB/s.
//!
//! Parts are those of SmolLM2-135M (8 blocks of 245760 bytes), each with a place of its own in
//! memory, as in a pool. Cold: the page cache drops the files first. Cached: all files
//! were read twice before, because the kernel moves pages to its list of active ones at the second
//! time. Beside each figure stands that of a loop that reads the same files in the same way with
//! one call for each, without a checksum and without a header; cached reads take turns with it.
//! `checksum` is the summing of what is in memory by itself.

use std::error::Error;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use penstock_kvstore::disk::{Disk, DiskOptions};
use penstock_kvstore::{Checksum, PartKey, StoreIdentity, Tier};
use rustix::fs::{Advice, Mode, OFlags};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PAGE: usize = 4096;
/// How often cached reads and plain ones take turns in a round.
const TURNS: usize = 3;

struct Bench {
    path: PathBuf,
    identity: StoreIdentity,
    keys: Vec<PartKey>,
    threads: usize,
    /// For each key, room for a file, from a page's begin; touched.
    places: Vec<Mutex<&'static mut [u8]>>,
}

fn places(count: usize, bytes: usize) -> Vec<Mutex<&'static mut [u8]>> {
    let memory = vec![1; count * bytes + PAGE].leak();
    let begin = memory.as_ptr().align_offset(PAGE);
    let places = memory[begin..begin + count * bytes].chunks_mut(bytes);
    places.map(Mutex::new).collect()
}

impl Bench {
    fn disk(&self) -> Outcome<Disk> {
        let options = DiskOptions {
            path: self.path.clone(),
            limit_bytes: 1 << 40,
            daily_write_bytes: None,
            chunk_blocks: 8,
            quota: None,
        };
        Ok(Disk::open(options, self.identity.clone())?)
    }

    fn payload(&self) -> usize {
        self.keys[0].payload_bytes(&self.identity)
    }

    fn files(&self) -> Outcome<Vec<PathBuf>> {
        let mut files = Vec::new();
        let mut places = vec![self.path.clone()];
        while let Some(place) = places.pop() {
            for entry in std::fs::read_dir(place)? {
                let entry = entry?;
                match entry.file_type()?.is_dir() {
                    true => places.push(entry.path()),
                    false if entry.metadata()?.len() > 4096 => files.push(entry.path()),
                    false => {}
                }
            }
        }
        Ok(files)
    }

    fn forget(&self) -> Outcome<()> {
        for file in self.files()? {
            let file = File::open(file)?;
            file.sync_data()?;
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    }

    /// GB/s of `each` for every key and its place, over all threads.
    fn rate(&self, each: impl Fn(usize, &mut [u8]) -> Outcome<()> + Sync) -> Outcome<f64> {
        let next = AtomicUsize::new(0);
        let work = || -> Outcome<()> {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(place) = self.places.get(at) else {
                    return Ok(());
                };
                each(
                    at,
                    &mut place.lock().unwrap_or_else(PoisonError::into_inner),
                )?;
            }
        };
        let work = &work;
        let begin = Instant::now();
        std::thread::scope(|scope| -> Outcome<()> {
            let threads: Vec<_> = (0..self.threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err("a thread panicked".into()))
            })
        })?;
        Ok((self.keys.len() * self.payload()) as f64 / begin.elapsed().as_secs_f64() / 1e9)
    }

    fn load(&self) -> Outcome<f64> {
        let disk = self.disk()?;
        let block = self.keys[0].extent_bytes(&self.identity);
        self.rate(|at, place| {
            let mut blocks: Vec<_> = place[..self.payload()].chunks_mut(block).collect();
            Ok(disk.load(&self.keys[at], &mut blocks)?)
        })
    }

    fn plain(&self, flags: OFlags) -> Outcome<f64> {
        let files = self.files()?;
        self.rate(|at, place| {
            let file = rustix::fs::open(&files[at], OFlags::RDONLY | flags, Mode::empty())?;
            let read = rustix::io::pread(&file, &mut *place, 0)?;
            (read == place.len())
                .then_some(())
                .ok_or_else(|| "a short read".into())
        })
    }

    fn checksum(&self) -> Outcome<f64> {
        self.rate(|_, place| {
            let mut sum = Checksum::new();
            sum.update(&place[..self.payload()]);
            std::hint::black_box(sum.value());
            Ok(())
        })
    }

    fn store(&self) -> Outcome<f64> {
        let disk = self.disk()?;
        self.rate(|at, place| {
            let payload = &place[..self.payload()];
            Ok(disk.store(&self.keys[at], payload, None)?)
        })
    }

    fn round(&self) -> Outcome<()> {
        self.forget()?;
        println!("cold   auto           {:.2}", self.load()?);
        self.forget()?;
        println!("cold   plain direct   {:.2}", self.plain(OFlags::DIRECT)?);
        self.plain(OFlags::empty())?;
        for _ in 0..TURNS {
            println!("cached auto           {:.2}", self.load()?);
            println!("cached plain buffered {:.2}", self.plain(OFlags::empty())?);
            println!("cached checksum       {:.2}", self.checksum()?);
        }
        Ok(())
    }
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(
        arguments
            .next()
            .ok_or("disk_reads DIRECTORY [THREADS [PARTS]]")?,
    );
    let threads = arguments.next().map_or(Ok(4), |text| text.parse())?;
    let parts: u64 = arguments.next().map_or(Ok(512), |text| text.parse())?;
    let identity = StoreIdentity {
        cache: "00".repeat(32),
        layers: 30,
        kv_heads: 3,
        block_tokens: 32,
        tile_bytes: 8192,
        dtype: "bf16".into(),
    };
    let keys = (0..parts).map(|number| PartKey {
        digest: *blake3::hash(&number.to_le_bytes()).as_bytes(),
        blocks: 8,
        head: 0,
        layers: (0, 30),
    });
    let keys: Vec<_> = keys.collect();
    let payload = keys[0].payload_bytes(&identity);
    let bench = Bench {
        path,
        identity,
        places: places(keys.len(), payload + PAGE),
        keys,
        threads,
    };
    println!("{threads} threads, {parts} parts of {payload} bytes");
    println!("store                 {:.2}", bench.store()?);
    for round in 0..3 {
        println!("round {round}");
        bench.round()?;
    }
    Ok(())
}
