//! A monotonic counter in shared memory: one rank increments it, other ranks wait for a value.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

use crate::error::GroupError;
use crate::memory::Memory;

/// Time for which a wait spins before it sleeps. An all-reduce of one row takes about 10 us, and so
/// does an unnecessary sleep. A longer wait should leave the core to other threads.
const SPIN: Duration = Duration::from_micros(40);
/// Interval at which a sleeping rank checks whether the group has ended.
const LOOK: Duration = Duration::from_millis(50);

/// Two 32-bit words at byte `offset` of the shared memory: the value, and the number of ranks that
/// sleep until it changes. Values wrap at 2^32; compared values differ by far less than 2^31, so
/// their order is unambiguous.
#[derive(Clone, Copy)]
pub(crate) struct Counter {
    offset: usize,
}

impl Counter {
    pub(crate) fn at(offset: usize) -> Self {
        Self { offset }
    }

    fn words<'m>(&self, memory: &'m Memory) -> (&'m AtomicU32, &'m AtomicU32) {
        (memory.atomic(self.offset), memory.atomic(self.offset + 4))
    }

    pub(crate) fn get(&self, memory: &Memory) -> u32 {
        self.words(memory).0.load(Acquire)
    }

    /// Sets the counter to `value`. A rank that reads this value also sees all earlier writes of
    /// this rank.
    pub(crate) fn set(&self, memory: &Memory, value: u32) {
        let (number, sleepers) = self.words(memory);
        // SeqCst orders the store of the value before the load of the sleeper count; a sleeper
        // increments that count before it loads the value.
        number.store(value, SeqCst);
        if sleepers.load(SeqCst) > 0 {
            wake(number);
        }
    }

    /// Waits until the counter, owned by `rank`, reaches `value`. Fails when the group ends, or
    /// after `patience`.
    pub(crate) fn wait(
        &self,
        memory: &Memory,
        value: u32,
        rank: usize,
        patience: Duration,
    ) -> Result<(), GroupError> {
        let reached = |number: u32| number.wrapping_sub(value) < 1 << 31;
        let (number, sleepers) = self.words(memory);
        let began = Instant::now();
        while !reached(number.load(Acquire)) {
            if began.elapsed() < SPIN {
                (0..20).for_each(|_| std::hint::spin_loop());
                continue;
            }
            if let Some(reason) = memory.ended() {
                return Err(GroupError::Ended(reason));
            }
            if began.elapsed() > patience {
                let seconds = patience.as_secs();
                return Err(GroupError::Silent { rank, seconds });
            }
            sleepers.fetch_add(1, SeqCst);
            let seen = number.load(SeqCst);
            if !reached(seen) {
                sleep(number, seen);
            }
            sleepers.fetch_sub(1, Relaxed);
        }
        Ok(())
    }
}

/// Sleeps while the word equals `seen`, for at most [`LOOK`]. Spurious wake-ups are possible.
fn sleep(word: &AtomicU32, seen: u32) {
    let limit = libc::timespec {
        tv_sec: 0,
        tv_nsec: LOOK.as_nanos() as libc::c_long,
    };
    // SAFETY: the word is valid for the call; the kernel only compares it. Shared between
    // processes, so not FUTEX_PRIVATE.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            seen,
            &raw const limit,
        );
    }
}

fn wake(word: &AtomicU32) {
    // SAFETY: the word is valid for the call.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}
