//! Following a batcher's timeline in real time.
//!
//! The timeline is exact: a step begins where the one before ended, and takes in what had arrived
//! by then. Real time is only waited for before a step is published, so a late timer shifts no
//! later step; steps that are due together are published one after another. A host that cannot keep
//! up at all would fall behind for ever: beyond [`MAX_LAG`] the timeline is moved to the present
//! and the loss is counted.

use std::collections::VecDeque;
use std::time::Duration;

use penstock_wire::{Step, StepStats};
use tokio::sync::mpsc::{UnboundedReceiver, error::TryRecvError};
use tokio::time::Instant;

use crate::batching::{Ask, Batcher};
use crate::timer::Timer;

const MAX_LAG: Duration = Duration::from_millis(50);
/// Between reports of an idle engine.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A moment of a timeline is the time since its beginning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    beginning: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            beginning: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.beginning.elapsed()
    }
}

/// What the engine is told, and when that arrived.
pub(crate) struct Command<S> {
    pub(crate) at: Duration,
    pub(crate) order: Order<S>,
}

pub(crate) enum Order<S> {
    Add {
        id: u64,
        ask: Box<Ask>,
        seat: S,
    },
    Cancel(Vec<u64>),
    /// Every request ends as cancelled, then the driver.
    Shutdown,
}

/// Where a driver's results go.
pub(crate) trait Publisher {
    /// Where the results of one request go.
    type Seat;

    fn open(&mut self, id: u64, seat: Self::Seat);

    /// Whoever asked for this wants no more of it.
    fn left(&mut self, id: u64);

    /// A step has begun.
    fn begun(&mut self, stats: &StepStats);

    /// Takes the results of a step, or of no step. Returns ids of requests to be cancelled.
    fn publish(&mut self, step: Step) -> Vec<u64>;

    /// An idle second has passed.
    fn heartbeat(&mut self, step: Step);

    /// The timeline was moved by this much: the host is too slow for the model.
    fn slipped(&mut self, by: Duration);
}

pub(crate) struct Driver<P: Publisher, T> {
    pub(crate) batcher: Batcher,
    pub(crate) publisher: P,
    pub(crate) commands: UnboundedReceiver<Command<P::Seat>>,
    pub(crate) clock: Clock,
    pub(crate) timer: T,
    pending: VecDeque<Command<P::Seat>>,
    /// The present of the timeline.
    now: Duration,
    ending: bool,
}

impl<P: Publisher, T: Timer> Driver<P, T> {
    pub(crate) fn new(
        batcher: Batcher,
        publisher: P,
        commands: UnboundedReceiver<Command<P::Seat>>,
        clock: Clock,
        timer: T,
    ) -> Self {
        Self {
            batcher,
            publisher,
            commands,
            clock,
            timer,
            pending: VecDeque::new(),
            now: Duration::ZERO,
            ending: false,
        }
    }

    /// Runs until SHUTDOWN, or until nobody can give commands any more.
    pub(crate) async fn run(mut self) {
        loop {
            self.collect();
            self.take_in();
            if let Some(cost) = self.batcher.schedule(self.now) {
                self.compute(cost).await;
                continue;
            }
            if self.batcher.has_outputs() {
                let step = self.batcher.idle_step();
                self.publish(step);
                continue;
            }
            if self.ending || !self.rest().await {
                return;
            }
        }
    }

    /// Moves commands that have arrived to where they wait for their moment.
    fn collect(&mut self) {
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.pending.push_back(command),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
            }
        }
    }

    /// Obeys what had arrived by the present of the timeline.
    fn take_in(&mut self) {
        while self.pending.front().is_some_and(|next| next.at <= self.now) {
            let Some(command) = self.pending.pop_front() else {
                return;
            };
            match command.order {
                Order::Add { id, ask, seat } => {
                    self.publisher.open(id, seat);
                    self.batcher.add(id, *ask, command.at);
                }
                Order::Cancel(ids) => {
                    for id in ids {
                        self.publisher.left(id);
                        self.batcher.cancel(id);
                    }
                }
                Order::Shutdown => {
                    self.batcher.cancel_all();
                    self.ending = true;
                }
            }
        }
    }

    async fn compute(&mut self, cost: Duration) {
        self.publisher.begun(&self.batcher.stats());
        let end = self.now + cost;
        self.timer.wait_until(self.clock.beginning + end).await;
        let step = self.batcher.apply();
        self.publish(step);
        self.advance(end, cost);
        // Connections write what was published before the next step is, also when that is due
        // already.
        tokio::task::yield_now().await;
    }

    fn advance(&mut self, end: Duration, cost: Duration) {
        let real = self.clock.now();
        let lag = real.saturating_sub(end);
        if cost.is_zero() {
            self.now = real;
        } else if lag > MAX_LAG {
            self.publisher.slipped(lag);
            self.now = real;
        } else {
            self.now = end;
        }
    }

    fn publish(&mut self, step: Step) {
        for id in self.publisher.publish(step) {
            self.batcher.cancel(id);
        }
    }

    /// Nothing to compute: waits for a command. False when none can come.
    async fn rest(&mut self) -> bool {
        while self.pending.is_empty() {
            match tokio::time::timeout(HEARTBEAT, self.commands.recv()).await {
                Ok(Some(command)) => self.pending.push_back(command),
                Ok(None) => return false,
                Err(_elapsed) => {
                    let step = self.batcher.idle_step();
                    self.publisher.heartbeat(step);
                }
            }
        }
        if let Some(next) = self.pending.front() {
            self.now = self.now.max(next.at);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{Arc, Mutex};

    use penstock_wire::TokenRequest;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::answers::Answers;
    use crate::profile::Profile;
    use crate::timing::Timing;

    /// Wakes up late.
    struct LateTimer(Duration);

    impl Timer for LateTimer {
        async fn wait_until(&mut self, moment: Instant) {
            if moment > Instant::now() {
                tokio::time::sleep_until(moment + self.0).await;
            }
        }
    }

    #[derive(Default)]
    struct Seen {
        tokens_ms: Vec<u128>,
        slips: Vec<u128>,
        heartbeats: u32,
    }

    struct Watch {
        clock: Clock,
        seen: Arc<Mutex<Seen>>,
    }

    impl Publisher for Watch {
        type Seat = ();

        fn open(&mut self, _id: u64, _seat: ()) {}

        fn left(&mut self, _id: u64) {}

        fn begun(&mut self, _stats: &StepStats) {}

        fn publish(&mut self, step: Step) -> Vec<u64> {
            let tokens = step.outputs.iter().flat_map(|output| &output.tokens);
            let now = self.clock.now().as_millis();
            self.seen
                .lock()
                .unwrap()
                .tokens_ms
                .extend(tokens.map(|_| now));
            Vec::new()
        }

        fn heartbeat(&mut self, _step: Step) {
            self.seen.lock().unwrap().heartbeats += 1;
        }

        fn slipped(&mut self, by: Duration) {
            self.seen.lock().unwrap().slips.push(by.as_millis());
        }
    }

    /// One request of `tokens` tokens at steps of a millisecond, with a timer that is this late.
    async fn run(late_ms: u64, tokens: u32) -> Seen {
        let profile = Profile {
            timing: Timing {
                base_us: 1000.0,
                ..Timing::instant()
            },
            ..Profile::default()
        };
        let answers = Answers {
            words: (1..9).collect(),
            eos: 0,
            seed: 0,
            lengths: None,
        };
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let clock = Clock::new();
        let (commands, inbox) = unbounded_channel();
        let publisher = Watch {
            clock,
            seen: seen.clone(),
        };
        let batcher = Batcher::new(profile, answers);
        let timer = LateTimer(Duration::from_millis(late_ms));
        let request = TokenRequest {
            prompt: vec![1],
            max_tokens: tokens,
            ignore_eos: true,
            ..TokenRequest::default()
        };
        let ask = Ask {
            request,
            ..Ask::default()
        };
        let order = Order::Add {
            id: 1,
            ask: Box::new(ask),
            seat: (),
        };
        let at = clock.now();
        assert!(commands.send(Command { at, order }).is_ok());
        let driver = tokio::spawn(Driver::new(batcher, publisher, inbox, clock, timer).run());
        tokio::time::sleep(Duration::from_millis(5500)).await;
        drop(commands);
        driver.await.unwrap();
        std::mem::take(&mut *seen.lock().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_punctual_timer_publishes_on_the_schedule() {
        let seen = run(0, 6).await;
        assert_eq!(seen.tokens_ms, [1, 2, 3, 4, 5, 6]);
        assert!(seen.heartbeats >= 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_timer_is_caught_up() {
        // Due at 1, published at 4 with what is due by then; due at 5, published at 8.
        let seen = run(3, 10).await;
        assert_eq!(seen.tokens_ms, [4, 4, 4, 4, 8, 8, 8, 8, 12, 12]);
        assert!(seen.slips.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_cannot_keep_up_loses_the_schedule_and_says_so() {
        let seen = run(60, 3).await;
        assert_eq!(seen.tokens_ms, [61, 122, 183]);
        assert_eq!(seen.slips, [60, 60, 60]);
    }
}
