//! Tracks the prompts that a replica has yet to compute. A prompt counts until the first token of
//! its response. If the response is not streamed, it counts until a multiple of the expected time
//! has passed. Pure.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A prompt is overdue after this multiple of the expected time to its first token.
const SLACK: u32 = 4;
/// Added to the expected time of every prompt, for round trips, tokenization and one step.
const LEAST: Duration = Duration::from_secs(1);
/// Maximum number of prompts tracked for each replica; older ones count as computed.
const MOST: usize = 4096;

/// The prompt of a request in flight.
#[derive(Debug)]
pub(crate) struct Prompt {
    /// Number of tokens that the replica must compute.
    pub uncached: u64,
    computed: AtomicBool,
}

impl Prompt {
    pub(crate) fn new(uncached: u64) -> Self {
        Self {
            uncached,
            computed: AtomicBool::new(false),
        }
    }

    /// Marks the prompt as computed; true for the first call only.
    pub(crate) fn compute(&self) -> bool {
        !self.computed.swap(true, Ordering::Relaxed)
    }

    fn is_computed(&self) -> bool {
        self.computed.load(Ordering::Relaxed)
    }
}

/// The prompts of one replica, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Prompts {
    queue: VecDeque<(Duration, Arc<Prompt>)>,
}

impl Prompts {
    /// Adds a prompt; `expected` is the time from `now` until its first token.
    pub(crate) fn push(&mut self, prompt: Arc<Prompt>, now: Duration, expected: Duration) {
        self.queue
            .push_back((now + LEAST + SLACK * expected, prompt));
    }

    /// Removes the prompts that must have been computed by `now`, and returns the number of
    /// uncached tokens of each. While the replica reports waiting requests (`wait`), only prompts
    /// beyond the maximum are removed.
    pub(crate) fn overdue(&mut self, now: Duration, wait: bool) -> Vec<u64> {
        let mut tokens = Vec::new();
        while let Some((due, prompt)) = self.queue.front() {
            let late = *due <= now && !wait || self.queue.len() > MOST;
            if !late && !prompt.is_computed() {
                break;
            }
            if prompt.compute() {
                tokens.push(prompt.uncached);
            }
            self.queue.pop_front();
        }
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn pushed(prompts: &mut Prompts, uncached: u64, now: Duration) -> Arc<Prompt> {
        let prompt = Arc::new(Prompt::new(uncached));
        prompts.push(prompt.clone(), now, ms(100));
        prompt
    }

    #[test]
    fn a_prompt_is_computed_once_by_its_first_token_or_by_the_time() {
        let mut prompts = Prompts::default();
        let first = pushed(&mut prompts, 1, ms(0));
        let second = pushed(&mut prompts, 2, ms(0));
        let third = pushed(&mut prompts, 3, ms(500));
        assert!(first.compute());
        assert!(!first.compute());
        assert_eq!(prompts.overdue(ms(1399), false), [0; 0]);
        assert_eq!(prompts.overdue(ms(1400), false), [2]);
        assert!(!second.compute());
        assert!(third.compute());
        assert_eq!(prompts.overdue(ms(9000), false), [0; 0]);
    }

    #[test]
    fn a_replica_with_a_queue_has_all_the_time_it_needs() {
        let mut prompts = Prompts::default();
        pushed(&mut prompts, 1, ms(0));
        assert_eq!(prompts.overdue(ms(9000), true), [0; 0]);
        let more = u64::try_from(MOST).unwrap();
        let all: Vec<_> = (2..=more + 3)
            .map(|n| pushed(&mut prompts, n, ms(0)))
            .collect();
        assert_eq!(prompts.overdue(ms(9000), true), [1, 2, 3]);
        let late = all.iter().filter(|prompt| prompt.compute()).count();
        assert_eq!(late, all.len() - 2, "the first two were overdue");
        assert_eq!(prompts.overdue(ms(9000), true), [0; 0]);
        assert!(prompts.queue.is_empty());
    }
}
