//! Reads a checkpoint's tensors ahead of their use, on background threads.
//!
//! Pages of the mapping are read and mapped in the order in which the loader uses them, so that its
//! threads neither wait for a disk nor take page faults. `MADV_POPULATE_READ` reads and maps
//! without a copy, at 12 GB/s from the page cache, and the kernel's read-ahead of a mapping uses
//! large folios. Measured on a file that is not cached: two thirds of the time of `read`, and half
//! the time with a preceding `MADV_WILLNEED`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::{FormatError, Unreadable};
use crate::{Checkpoint, TensorView};

/// Bytes that a thread reads per call.
const PIECE: usize = 8 << 20;
/// Read-ahead window: bytes mapped beyond the part in use.
const AHEAD: u64 = 128 << 20;

/// Progress of a load, readable from another thread.
#[derive(Debug, Default)]
pub struct ReadCount {
    total: AtomicU64,
    read: AtomicU64,
}

impl ReadCount {
    /// Bytes to read; 0 while unknown.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Bytes read so far.
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

/// Parts of a checkpoint approximately in the order of use: tensors, or single experts of stacked
/// tensors. Parts that were not added are usable too; they are read on access.
pub struct ReadAhead<'a> {
    checkpoint: &'a Checkpoint,
    /// The added parts by tensor name and expert.
    parts: HashMap<(&'a str, Option<usize>), Part>,
    pieces: Vec<Piece<'a>>,
    bytes: u64,
    count: &'a ReadCount,
    /// Number of the first piece that is not loaded yet.
    there: AtomicUsize,
    /// The furthest piece that was requested so far.
    in_use: AtomicUsize,
    state: Mutex<ReadQueue>,
    changed: Condvar,
}

/// Byte range of a part and the first of its pieces.
#[derive(Clone, Copy)]
struct Part {
    start: usize,
    end: usize,
    piece: usize,
}

struct Piece<'a> {
    tensor: &'a str,
    file: usize,
    range: Range<usize>,
    /// Total bytes of the earlier pieces.
    before: u64,
}

#[derive(Default)]
struct ReadQueue {
    /// The next piece to read.
    next: usize,
    /// Loaded pieces after the first missing one.
    early: Vec<usize>,
    released: usize,
    closed: bool,
    /// The first piece that cannot be read. Pieces are claimed in order, so all earlier ones
    /// arrive.
    fault: Option<(usize, Unreadable)>,
}

/// Handle to wait for a tensor, or for one expert of a stacked tensor.
#[derive(Clone, Copy)]
pub struct Arrival<'a> {
    ahead: &'a ReadAhead<'a>,
    part: Option<Part>,
}

/// Stops the reading when dropped.
struct ReadGuard<'a>(&'a ReadAhead<'a>);

impl<'a> ReadAhead<'a> {
    /// An empty read-ahead.
    pub fn new(checkpoint: &'a Checkpoint, count: &'a ReadCount) -> Self {
        Self {
            checkpoint,
            parts: HashMap::new(),
            pieces: Vec::new(),
            bytes: 0,
            count,
            there: AtomicUsize::new(0),
            in_use: AtomicUsize::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// Adds a tensor, or one `expert` of a stacked tensor, after the parts added so far. Missing
    /// tensors are ignored here and reported to their user; parts that were already added are not
    /// read again.
    pub fn add(&mut self, tensor: &str, expert: Option<usize>) {
        let Some((name, file, range)) = self.checkpoint.place(tensor, expert) else {
            return;
        };
        let known = [expert, None].map(|which| self.parts.contains_key(&(name, which)));
        if known.contains(&true) {
            return;
        }
        let part = Part {
            start: range.start,
            end: range.end,
            piece: self.pieces.len(),
        };
        self.parts.insert((name, expert), part);
        for start in range.clone().step_by(PIECE) {
            let range = start..range.end.min(start + PIECE);
            let (before, bytes) = (self.bytes, range.len() as u64);
            self.bytes += bytes;
            self.pieces.push(Piece {
                tensor: name,
                file,
                range,
                before,
            });
        }
    }

    /// Runs `load` while `readers` threads read ahead.
    ///
    /// # Errors
    /// A thread could not be started, or `load` failed.
    pub fn run<T, E: From<std::io::Error>>(
        &self,
        readers: usize,
        load: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.count.total.store(self.bytes, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let _closing = ReadGuard(self);
            for _ in 0..readers.max(1) {
                let thread = std::thread::Builder::new().name("weights".to_owned());
                thread.spawn_scoped(scope, || self.read_all())?;
            }
            load()
        })
    }

    /// A handle to wait for a tensor, or for one expert of it.
    pub fn arrival(&'a self, tensor: &str, expert: Option<usize>) -> Arrival<'a> {
        let part = |which| self.parts.get(&(tensor, which)).copied();
        Arrival {
            ahead: self,
            part: part(expert).or_else(|| part(None)),
        }
    }

    /// Waits until a whole tensor is loaded.
    ///
    /// # Errors
    /// There is no such tensor, its element type is not one of [`crate::DType`], or the file cannot
    /// be read.
    pub fn tensor(&'a self, name: &str) -> Result<TensorView<'a>, FormatError> {
        let view = self.checkpoint.tensor(name)?;
        if !self.arrival(name, None).until(usize::MAX) {
            self.check()?;
        }
        Ok(view)
    }

    /// # Errors
    /// A file cannot be read, or is shorter than when it was opened.
    pub fn check(&self) -> Result<(), FormatError> {
        self.lock()
            .fault
            .clone()
            .map_or(Ok(()), |(_, fault)| Err(fault.into()))
    }

    /// Lets the operating system reclaim the pages of all parts requested so far. A loader calls
    /// this after packing a layer, so that checkpoint and packed weights are never both resident.
    /// Best effort.
    pub fn release(&self) {
        let (from, to) = {
            let mut state = self.lock();
            let end = self.in_use.load(Ordering::Relaxed).min(self.pieces.len());
            let from = state.released;
            state.released = from.max(end);
            (from, state.released)
        };
        let mut used = self.pieces[from..to].iter().peekable();
        while let Some(first) = used.next() {
            let mut range = first.range.clone();
            while let Some(next) =
                used.next_if(|next| next.file == first.file && next.range.start == range.end)
            {
                range.end = next.range.end;
            }
            self.checkpoint.files[first.file].release(&range);
        }
    }

    fn read_all(&self) {
        while let Some(index) = self.claim() {
            let piece = &self.pieces[index];
            let read = self.checkpoint.files[piece.file].populate(&piece.range, piece.tensor);
            let mut state = self.lock();
            match read {
                Ok(()) => self.arrived(&mut state, index),
                Err(fault) if state.fault.as_ref().is_none_or(|(at, _)| index < *at) => {
                    state.fault = Some((index, fault));
                }
                Err(_) => {}
            }
            self.changed.notify_all();
        }
    }

    /// Claims the next piece to read if it is within the window.
    fn claim(&self) -> Option<usize> {
        let mut state = self.lock();
        loop {
            let next = self.pieces.get(state.next)?;
            if state.closed || state.fault.is_some() {
                return None;
            }
            let used = self.in_use.load(Ordering::Relaxed);
            if self
                .pieces
                .get(used)
                .is_none_or(|used| next.before <= used.before + AHEAD)
            {
                state.next += 1;
                return Some(state.next - 1);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn arrived(&self, state: &mut ReadQueue, index: usize) {
        let bytes = self.pieces[index].range.len() as u64;
        self.count.read.fetch_add(bytes, Ordering::Relaxed);
        state.early.push(index);
        let mut there = self.there.load(Ordering::Relaxed);
        while let Some(at) = state.early.iter().position(|&index| index == there) {
            state.early.swap_remove(at);
            there += 1;
        }
        self.there.store(there, Ordering::Release);
    }

    /// Waits until a piece is loaded. Returns false if it cannot be read.
    fn wait(&self, piece: usize) -> bool {
        let known = self.in_use.load(Ordering::Relaxed) >= piece;
        if known && self.there.load(Ordering::Acquire) > piece {
            return true;
        }
        let mut state = self.lock();
        if self.in_use.fetch_max(piece, Ordering::Relaxed) < piece {
            self.changed.notify_all();
        }
        loop {
            let there = self.there.load(Ordering::Acquire);
            if there > piece {
                return true;
            }
            if state.fault.as_ref().is_some_and(|(at, _)| *at == there) {
                return false;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReadQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arrival<'_> {
    /// Waits until the part's bytes before file offset `end` are loaded. Returns false if they
    /// cannot be read: accessing them could then kill the process.
    pub fn until(&self, end: usize) -> bool {
        let Some(part) = self.part.filter(|part| part.start < part.end) else {
            return true;
        };
        let last = end.clamp(part.start + 1, part.end) - 1;
        self.ahead.wait(part.piece + (last - part.start) / PIECE)
    }

    /// Like [`ReadAhead::check`].
    ///
    /// # Errors
    /// The file cannot be read, or is shorter than when it was opened.
    pub fn check(&self) -> Result<(), FormatError> {
        self.ahead.check()
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}
