//! Drives the timeline of a batcher (the simulated engine's scheduler) in real time.
//!
//! The timeline is exact: a step starts at the end of the previous one and includes all commands
//! that had arrived by then. Real time only decides when a step is published, so a late timer does
//! not shift later steps. Steps that are due at the same time are published one after another. If
//! the host is late by more than [`MAX_LAG`], the timeline slips to the present, and the slip is
//! counted.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use penstock_engine_client::{FrontConnection, Outbox};
use penstock_wire::{EngineFrame, Finish, Output, Step};
use tokio::sync::mpsc::{UnboundedReceiver, error::TryRecvError};
use tokio::time::Instant;

use crate::batching::{Ask, Batcher};
use crate::counters::Counters;
use crate::faults::FaultKind;
use crate::timer::Timer;

const MAX_LAG: Duration = Duration::from_millis(50);
/// Interval at which an idle engine sends a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Converts real time to time since the start of a timeline.
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

/// An order to the engine, with the time at which it arrived.
pub(crate) struct Command {
    pub(crate) at: Duration,
    pub(crate) order: Order,
}

pub(crate) enum Order {
    Add {
        id: u64,
        ask: Box<Ask>,
        fault: Option<FaultKind>,
    },
    Cancel(Vec<u64>),
    /// Cancels all requests; then the driver ends.
    Shutdown,
}

/// Runs the timeline of one engine and sends each step to the API server.
pub(crate) struct Driver<T> {
    batcher: Batcher,
    commands: UnboundedReceiver<Command>,
    outbox: Outbox,
    clock: Clock,
    timer: T,
    counters: Arc<Counters>,
    /// Requests with an injected fault, by id.
    faulty: HashMap<u64, Faulty>,
    pending: VecDeque<Command>,
    /// Time that the timeline has reached.
    now: Duration,
    ending: bool,
}

/// A request with an injected fault.
struct Faulty {
    fault: FaultKind,
    /// Number of tokens that were sent before the fault.
    sent: u32,
    struck: bool,
    /// Whether the final output was withheld, because the request stalls.
    ended: bool,
}

impl<T: Timer> Driver<T> {
    pub(crate) fn new(
        batcher: Batcher,
        commands: UnboundedReceiver<Command>,
        outbox: Outbox,
        clock: Clock,
        timer: T,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            batcher,
            commands,
            outbox,
            clock,
            timer,
            counters,
            faulty: HashMap::new(),
            pending: VecDeque::new(),
            now: Duration::ZERO,
            ending: false,
        }
    }

    /// Runs until a shutdown order, or until the command channel is closed.
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

    /// Moves received commands to `pending`.
    fn collect(&mut self) {
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.pending.push_back(command),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
            }
        }
    }

    /// Applies the commands that arrived up to the time that the timeline has reached.
    fn take_in(&mut self) {
        while self.pending.front().is_some_and(|next| next.at <= self.now) {
            let Some(command) = self.pending.pop_front() else {
                return;
            };
            match command.order {
                Order::Add { id, ask, fault } => {
                    if let Some(fault) = fault {
                        self.faulty.insert(id, Faulty::new(fault));
                    }
                    self.batcher.add(id, *ask, command.at);
                }
                Order::Cancel(ids) => {
                    for id in ids {
                        self.release(id);
                        self.batcher.cancel(id);
                    }
                }
                Order::Shutdown => {
                    for id in self.faulty.keys().copied().collect::<Vec<_>>() {
                        self.release(id);
                    }
                    self.batcher.cancel_all();
                    self.ending = true;
                }
            }
        }
    }

    /// Ends the stall of a cancelled request, so that the request ends as any other, even if the
    /// batcher has already finished it.
    fn release(&mut self, id: u64) {
        if !self.faulty.get(&id).is_some_and(Faulty::stalls) {
            return;
        }
        if self.faulty.remove(&id).is_some_and(|faulty| faulty.ended) {
            self.batcher.answer(instead(id, Finish::Cancelled, None));
        }
    }

    async fn compute(&mut self, cost: Duration) {
        let end = self.now + cost;
        self.timer.wait_until(self.clock.beginning + end).await;
        let step = self.batcher.apply();
        self.publish(step);
        self.advance(end, cost);
        // Yield, so that connections write this step before the next one is published, even if the
        // next one is already due.
        tokio::task::yield_now().await;
    }

    fn advance(&mut self, end: Duration, cost: Duration) {
        let real = self.clock.now();
        let lag = real.saturating_sub(end);
        if cost.is_zero() {
            self.now = real;
        } else if lag > MAX_LAG {
            self.counters.slipped(lag);
            self.now = real;
        } else {
            self.now = end;
        }
    }

    fn publish(&mut self, mut step: Step) {
        self.counters.step(step.stats.step);
        if !self.faulty.is_empty() {
            self.inject(&mut step);
        }
        FrontConnection::send(&self.outbox, &EngineFrame::Step(step));
    }

    /// Replaces outputs by their faults. A request that ends early by its fault is cancelled.
    fn inject(&mut self, step: &mut Step) {
        for output in std::mem::take(&mut step.outputs) {
            let Some(faulty) = self.faulty.get_mut(&output.id) else {
                step.outputs.push(output);
                continue;
            };
            let (id, goes_on) = (output.id, output.finish == Finish::None);
            let passed = faulty.pass(output);
            let ends = passed
                .as_ref()
                .is_some_and(|output| output.finish != Finish::None);
            if goes_on && ends {
                self.batcher.cancel(id);
            }
            if !goes_on && passed.is_none() && faulty.stalls() {
                faulty.ended = true;
            } else if !goes_on {
                self.faulty.remove(&id);
            }
            step.outputs.extend(passed);
        }
    }

    /// Waits for a command while the engine is idle. Returns false if the channel is closed.
    async fn rest(&mut self) -> bool {
        while self.pending.is_empty() {
            match tokio::time::timeout(HEARTBEAT, self.commands.recv()).await {
                Ok(Some(command)) => self.pending.push_back(command),
                Ok(None) => return false,
                Err(_elapsed) => {
                    let step = self.batcher.idle_step();
                    self.publish(step);
                }
            }
        }
        if let Some(next) = self.pending.front() {
            self.now = self.now.max(next.at);
        }
        true
    }
}

impl Faulty {
    fn new(fault: FaultKind) -> Self {
        Self {
            fault,
            sent: 0,
            struck: false,
            ended: false,
        }
    }

    fn stalls(&self) -> bool {
        matches!(self.fault, FaultKind::Stall(_))
    }

    /// The output that is sent in place of `output`; `None`: nothing is sent.
    fn pass(&mut self, output: Output) -> Option<Output> {
        if self.struck {
            return None;
        }
        let id = output.id;
        let ending = match self.fault {
            FaultKind::Refuse => Some(instead(id, Finish::Rejected, None)),
            FaultKind::ErrorEvent(after) if self.sent >= after => {
                Some(instead(id, Finish::Error, Some("a fault on purpose")))
            }
            FaultKind::Stall(after) if self.sent >= after => None,
            _ => {
                self.sent += output.tokens.len() as u32;
                return Some(output);
            }
        };
        self.struck = true;
        ending
    }
}

fn instead(id: u64, finish: Finish, error: Option<&str>) -> Output {
    Output {
        id,
        finish,
        error: error.map(str::to_owned),
        ..Output::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use penstock_engine_client::OutgoingFrame;
    use penstock_wire::{FrameReader, TokenRequest};
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::answers::Answers;
    use crate::profile::Profile;
    use crate::timing::Timing;

    /// A timer that always returns late, by this duration.
    struct LateTimer(Duration);

    impl Timer for LateTimer {
        async fn wait_until(&mut self, moment: Instant) {
            if moment > Instant::now() {
                tokio::time::sleep_until(moment + self.0).await;
            }
        }
    }

    #[derive(Default)]
    struct SessionLog {
        tokens_ms: Vec<u128>,
        slips: u64,
        slipped_ms: u128,
        heartbeats: u32,
    }

    fn step_of(frame: OutgoingFrame) -> Step {
        let mut frames = FrameReader::new();
        frames.spare().extend(frame.take().unwrap());
        let Some(EngineFrame::Step(step)) = frames.next_frame().unwrap() else {
            panic!("not a STEP")
        };
        step
    }

    async fn watch(clock: Clock, mut sent: UnboundedReceiver<OutgoingFrame>) -> SessionLog {
        let mut seen = SessionLog::default();
        while let Some(frame) = sent.recv().await {
            let step = step_of(frame);
            let now = clock.now().as_millis();
            let tokens = step.outputs.iter().flat_map(|output| &output.tokens);
            seen.tokens_ms.extend(tokens.map(|_| now));
            seen.heartbeats += u32::from(step.outputs.is_empty());
        }
        seen
    }

    /// A running driver with request 1.
    struct Rig {
        clock: Clock,
        commands: UnboundedSender<Command>,
        sent: UnboundedReceiver<OutgoingFrame>,
        counters: Arc<Counters>,
        driver: JoinHandle<()>,
    }

    impl Rig {
        /// The request has `tokens` tokens at steps of a millisecond; the timer is `late_ms` late.
        fn new(late_ms: u64, tokens: u32, fault: Option<FaultKind>) -> Self {
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
            let clock = Clock::new();
            let (commands, inbox) = unbounded_channel();
            let (outbox, sent) = unbounded_channel();
            let counters = Arc::new(Counters::default());
            let batcher = Batcher::new(profile, answers);
            let timer = LateTimer(Duration::from_millis(late_ms));
            let driver = Driver::new(batcher, inbox, outbox, clock, timer, counters.clone());
            let rig = Self {
                clock,
                commands,
                sent,
                counters,
                driver: tokio::spawn(driver.run()),
            };
            let request = TokenRequest {
                prompt: vec![1],
                max_tokens: tokens,
                ignore_eos: true,
                ..TokenRequest::default()
            };
            let ask = Box::new(Ask {
                request,
                ..Ask::default()
            });
            rig.order(Order::Add { id: 1, ask, fault });
            rig
        }

        fn order(&self, order: Order) {
            let at = self.clock.now();
            assert!(self.commands.send(Command { at, order }).is_ok());
        }
    }

    async fn run(late_ms: u64, tokens: u32) -> SessionLog {
        let rig = Rig::new(late_ms, tokens, None);
        let seen = tokio::spawn(watch(rig.clock, rig.sent));
        tokio::time::sleep(Duration::from_millis(5500)).await;
        drop(rig.commands);
        rig.driver.await.unwrap();
        SessionLog {
            slips: rig.counters.slips(),
            slipped_ms: (rig.counters.slipped_seconds() * 1e3).round() as u128,
            ..seen.await.unwrap()
        }
    }

    /// Number of tokens and finish reason of each output of a request that stalls after its first
    /// token and gets `order` at 20 ms.
    async fn stalled(tokens: u32, order: Order) -> Vec<(usize, Finish)> {
        let mut rig = Rig::new(0, tokens, Some(FaultKind::Stall(1)));
        tokio::time::sleep(Duration::from_millis(20)).await;
        rig.order(order);
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(rig.commands);
        rig.driver.await.unwrap();
        let mut outputs = Vec::new();
        while let Some(frame) = rig.sent.recv().await {
            let each = |output: Output| (output.tokens.len(), output.finish);
            outputs.extend(step_of(frame).outputs.into_iter().map(each));
        }
        outputs
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_request_ends_when_it_is_cancelled() {
        // With tokens left to compute, and without: in the second case the batcher has finished the
        // request.
        for tokens in [1000, 5] {
            for order in [Order::Cancel(vec![1]), Order::Shutdown] {
                let outputs = stalled(tokens, order).await;
                assert_eq!(
                    outputs,
                    [(1, Finish::None), (0, Finish::Cancelled)],
                    "{tokens}"
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_punctual_timer_publishes_on_the_schedule() {
        let seen = run(0, 6).await;
        assert_eq!(seen.tokens_ms, [1, 2, 3, 4, 5, 6]);
        assert!(seen.heartbeats >= 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_timer_is_caught_up() {
        // The step due at 1 is published at 4, with the others due by then; the one due at 5, at 8.
        let seen = run(3, 10).await;
        assert_eq!(seen.tokens_ms, [4, 4, 4, 4, 8, 8, 8, 8, 12, 12]);
        assert_eq!(seen.slips, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_cannot_keep_up_loses_the_schedule_and_says_so() {
        let seen = run(60, 3).await;
        assert_eq!(seen.tokens_ms, [61, 122, 183]);
        assert_eq!((seen.slips, seen.slipped_ms), (3, 180));
    }
}
