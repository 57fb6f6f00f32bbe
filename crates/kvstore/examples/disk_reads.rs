//! How fast the disk tier reads: `disk_reads DIRECTORY [THREADS [PARTS]]`, in GB/s.
//!
//! Parts are those of SmolLM2-135M (8 blocks of 245760 bytes). Cold: the page cache is told to forget the files first. Beside each figure stands
//! that of a loop that reads the same files in the same way with one call for each, without a checksum and without a header.

use std::error::Error;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use penstock_kvstore::disk::{Direct, Disk, DiskOptions, least_recently_used};
use penstock_kvstore::{About, PartKey, StoreIdentity, Tier};
use rustix::fs::{Advice, Mode, OFlags};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Memory as a pool has it: blocks one after another, from a page's begin.
struct Memory {
    bytes: Vec<u8>,
    begin: usize,
}

impl Memory {
    fn new(len: usize) -> Self {
        let bytes = vec![1; len + 4096];
        let begin = bytes.as_ptr().align_offset(4096);
        Self { bytes, begin }
    }

    fn blocks(&mut self, len: usize, block: usize) -> Vec<&mut [u8]> {
        self.bytes[self.begin..self.begin + len]
            .chunks_mut(block)
            .collect()
    }
}

struct Bench {
    path: PathBuf,
    identity: StoreIdentity,
    keys: Vec<PartKey>,
    threads: usize,
}

impl Bench {
    fn disk(&self, direct: Direct) -> Outcome<Disk> {
        let options = DiskOptions {
            path: self.path.clone(),
            limit_bytes: 1 << 40,
            daily_write_bytes: None,
            direct,
            chunk_blocks: 8,
        };
        Ok(Disk::open(
            options,
            self.identity.clone(),
            least_recently_used(),
        )?)
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

    /// GB/s of `each` for every number below that of the keys, over all threads.
    fn rate(&self, each: impl Fn(usize, &mut Memory) -> Outcome<()> + Sync) -> Outcome<f64> {
        let next = AtomicUsize::new(0);
        let mut memories: Vec<_> = (0..self.threads)
            .map(|_| Memory::new(self.payload() + 4096))
            .collect();
        let work = |memory: &mut Memory| -> Outcome<()> {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= self.keys.len() {
                    return Ok(());
                }
                each(at, memory)?;
            }
        };
        let work = &work;
        let begin = Instant::now();
        std::thread::scope(|scope| -> Outcome<()> {
            let threads: Vec<_> = memories
                .iter_mut()
                .map(|memory| scope.spawn(move || work(memory)))
                .collect();
            threads.into_iter().try_for_each(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err("a thread panicked".into()))
            })
        })?;
        Ok((self.keys.len() * self.payload()) as f64 / begin.elapsed().as_secs_f64() / 1e9)
    }

    fn load(&self, direct: Direct) -> Outcome<f64> {
        let disk = self.disk(direct)?;
        let block = self.keys[0].extent_bytes(&self.identity);
        self.rate(|at, memory| {
            Ok(disk.load(&self.keys[at], &mut memory.blocks(self.payload(), block))?)
        })
    }

    fn plain(&self, flags: OFlags) -> Outcome<f64> {
        let files = self.files()?;
        self.rate(|at, memory| {
            let file = rustix::fs::open(&files[at], OFlags::RDONLY | flags, Mode::empty())?;
            let whole = self.payload() + 4096;
            let read = rustix::io::pread(&file, &mut *memory.blocks(whole, whole)[0], 0)?;
            (read == whole)
                .then_some(())
                .ok_or_else(|| "a short read".into())
        })
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
    let bench = Bench {
        path,
        identity,
        keys: keys.collect(),
        threads,
    };
    let block = bench.keys[0].extent_bytes(&bench.identity);
    let disk = bench.disk(Direct::Auto)?;
    let stored = bench.rate(|at, memory| {
        let slices = memory.blocks(bench.payload(), block);
        Ok(disk.store(
            &bench.keys[at],
            &slices.iter().map(|slice| &**slice).collect::<Vec<_>>(),
            &About::default(),
        )?)
    })?;
    println!(
        "{threads} threads, {parts} parts of {} bytes",
        bench.payload()
    );
    println!("store                 {stored:.2}");
    for round in 0..3 {
        println!("round {round}");
        bench.forget()?;
        println!("cold   auto           {:.2}", bench.load(Direct::Auto)?);
        bench.forget()?;
        println!("cold   plain direct   {:.2}", bench.plain(OFlags::DIRECT)?);
        bench.forget()?;
        println!("cold   off            {:.2}", bench.load(Direct::Off)?);
        println!("cached auto           {:.2}", bench.load(Direct::Auto)?);
        println!("cached plain buffered {:.2}", bench.plain(OFlags::empty())?);
    }
    Ok(())
}
