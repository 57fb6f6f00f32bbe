//! The asynchronous part of flow control: waiting requests, polls of the load, and turns. A turn is
//! the permission for one request to be routed.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use penstock_api_types::ApiError;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::flow::queue::{Bounds, Item, Ticket};
use crate::flow::{Class, FlowSettings, Load, Queue};

/// Interval at which the pool's load is read while requests wait.
const TICK: Duration = Duration::from_millis(10);
/// Minimum and maximum pause before the next attempt of a request that all replicas refused. The
/// pause doubles if the previous turn was granted immediately: then replicas have room, but not for
/// this request.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// A wait up to this long counts as an immediate turn.
const AT_ONCE: Duration = Duration::from_millis(50);
/// Cost of a response, in bytes of prompt, for fairness between tenants.
const ANSWER_BYTES: u64 = 1024;
/// Lower and upper bound of `Retry-After`, in seconds.
const RETRY_AFTER: (u64, u64) = (1, 60);

/// Reasons of refusals, as labels of a metric; in the order of `Reason`.
pub(crate) const REASONS: [&str; 4] = ["sheddable", "full", "timeout", "client_gone"];

#[derive(Debug, Clone, Copy)]
enum Reason {
    Sheddable,
    Full,
    Timeout,
    ClientGone,
}

/// The flow control of a pool: its queue, settings and counters.
#[derive(Debug)]
pub(crate) struct FlowControl {
    load: Box<dyn Load>,
    settings: RwLock<FlowSettings>,
    state: Mutex<QueueState>,
    /// Number of queued requests, readable without the lock.
    waiting: AtomicUsize,
    /// Number of requests that were routed after a wait, the sum of their waits, and the last wait;
    /// waits are in microseconds.
    released: AtomicU64,
    waited_us: AtomicU64,
    last_wait_us: AtomicU64,
    refused: [AtomicU64; REASONS.len()],
}

#[derive(Debug, Default)]
struct QueueState {
    queue: Queue<oneshot::Sender<Turn>>,
    /// Whether a request has the turn and has not reserved its replica yet.
    turn_is_out: bool,
    ticking: bool,
}

/// Counters for the metrics page.
#[derive(Debug)]
pub(crate) struct FlowCounts {
    pub(crate) saturated: bool,
    /// For each priority with queued requests: the priority, their number, and the bytes of their
    /// bodies.
    pub(crate) bands: Vec<(i32, usize, usize)>,
    pub(crate) released: u64,
    pub(crate) waited_s: f64,
    /// Number of refusals, in the order of [`REASONS`].
    pub(crate) refused: [u64; REASONS.len()],
}

/// A request in flow control, with all of its attempts.
#[derive(Debug)]
pub(crate) struct Visit {
    flow: Arc<FlowControl>,
    class: Class,
    /// Length of the request's body in bytes.
    bytes: usize,
    cost: u64,
    began: Instant,
    /// The request's last place in the queue.
    ticket: Option<Ticket>,
    /// How long to wait before the next attempt.
    pause: Duration,
}

/// Permission for one waiting request to be routed. Dropped when the request has reserved its
/// replica or its client has disconnected; the next request can then be routed.
#[must_use]
#[derive(Debug)]
pub(crate) struct Turn(Option<Arc<FlowControl>>);

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(flow) = self.0.take() {
            flow.state().turn_is_out = false;
            flow.release();
        }
    }
}

/// A place in the queue, released on drop.
struct Waiting<'a> {
    flow: &'a FlowControl,
    ticket: Ticket,
    /// Whether the request got its turn or was refused. If false on drop, the client disconnected.
    ended: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.flow.count(Reason::ClientGone);
        }
        let mut state = self.flow.state();
        // The removed request is dropped outside the lock, because dropping its sender wakes the
        // receiver.
        let removed = state.queue.remove(&self.ticket);
        self.flow.publish(&state);
        drop(state);
        drop(removed);
    }
}

impl Visit {
    /// Waits until the request may be routed.
    ///
    /// # Errors
    /// 429: all replicas are saturated, and the request may not wait or has timed out.
    pub(crate) async fn pass(&mut self) -> Result<Turn, ApiError> {
        let settings = self.flow.settings();
        let flow = self.flow.clone();
        if self.class.priority >= 0 && !settings.queue {
            return Ok(Turn(None));
        }
        if !flow.has_waiting() && !flow.load.saturated(&settings) {
            return Ok(Turn(None));
        }
        if self.class.priority < 0 {
            return Err(flow.refusal(Reason::Sheddable));
        }
        match self.enter(&settings) {
            Some((ticket, turn)) => self.wait(ticket, turn, &settings).await,
            None => Err(flow.refusal(Reason::Full)),
        }
    }

    /// Whether the request may be queued again after all replicas have refused it.
    pub(crate) fn may_wait(&self) -> bool {
        self.class.priority >= 0 && self.flow.settings().queue
    }

    /// Waits for another turn. The request keeps its place in the queue.
    ///
    /// # Errors
    /// 429: the maximum wait has passed.
    pub(crate) async fn pass_again(&mut self) -> Result<Turn, ApiError> {
        let settings = self.flow.settings();
        let deadline = self.began + Duration::from_secs_f64(settings.max_wait_s);
        sleep_until(deadline.min(Instant::now() + self.pause)).await;
        let asked = Instant::now();
        if asked >= deadline {
            return Err(self.flow.refusal(Reason::Timeout));
        }
        let (ticket, turn) = self.enter_again();
        let turn = self.wait(ticket, turn, &settings).await;
        self.pause = match asked.elapsed() < AT_ONCE {
            true => PAUSE.1.min(self.pause * 2),
            false => PAUSE.0,
        };
        turn
    }

    /// Joins the queue; `None` if the queue is full.
    fn enter(&mut self, settings: &FlowSettings) -> Option<(Ticket, oneshot::Receiver<Turn>)> {
        let (sender, turn) = oneshot::channel();
        let bounds = Bounds {
            requests: settings.max_waiting,
            bytes: settings.max_waiting_bytes,
        };
        let (priority, tenant) = (self.class.priority, &self.class.tenant);
        let mut state = self.flow.state();
        let item = self.item(sender);
        let ticket = state.queue.push(priority, tenant, item, bounds).ok()?;
        self.flow.entered(state);
        self.ticket = Some(ticket.clone());
        Some((ticket, turn))
    }

    fn enter_again(&mut self) -> (Ticket, oneshot::Receiver<Turn>) {
        let (sender, turn) = oneshot::channel();
        let (priority, tenant) = (self.class.priority, &self.class.tenant);
        let mut state = self.flow.state();
        let (before, item) = (self.ticket.take(), self.item(sender));
        let ticket = state.queue.put_back(before, priority, tenant, item);
        self.flow.entered(state);
        self.ticket = Some(ticket.clone());
        (ticket, turn)
    }

    fn item(&self, sender: oneshot::Sender<Turn>) -> Item<oneshot::Sender<Turn>> {
        Item {
            value: sender,
            bytes: self.bytes,
            cost: self.cost,
        }
    }

    async fn wait(
        &self,
        ticket: Ticket,
        turn: oneshot::Receiver<Turn>,
        settings: &FlowSettings,
    ) -> Result<Turn, ApiError> {
        let (flow, began) = (&self.flow, Instant::now());
        let mut waiting = Waiting {
            flow,
            ticket,
            ended: false,
        };
        flow.release();
        let patience = Duration::from_secs_f64(settings.max_wait_s);
        let turn = timeout_at(self.began + patience, turn).await;
        waiting.ended = true;
        drop(waiting);
        match turn {
            Ok(Ok(turn)) => {
                flow.saw_wait(began.elapsed());
                Ok(turn)
            }
            _ => Err(flow.refusal(Reason::Timeout)),
        }
    }
}

impl FlowControl {
    pub(crate) fn new(settings: FlowSettings, load: impl Load + 'static) -> Arc<Self> {
        Arc::new(Self {
            load: Box::new(load),
            settings: RwLock::new(settings),
            state: Mutex::default(),
            waiting: AtomicUsize::new(0),
            released: AtomicU64::new(0),
            waited_us: AtomicU64::new(0),
            last_wait_us: AtomicU64::new(0),
            refused: Default::default(),
        })
    }

    /// Starts the flow control of a request. `bytes` is the size of its body; `prompt_bytes` counts
    /// against its tenant's share.
    pub(crate) fn visit(
        self: &Arc<Self>,
        class: Class,
        bytes: usize,
        prompt_bytes: usize,
    ) -> Visit {
        Visit {
            flow: self.clone(),
            class,
            bytes,
            cost: ANSWER_BYTES + prompt_bytes as u64,
            began: Instant::now(),
            ticket: None,
            pause: PAUSE.0,
        }
    }

    /// Publishes the new number of queued requests, and starts the task that polls the load if it
    /// is not running.
    fn entered(self: &Arc<Self>, mut state: MutexGuard<'_, QueueState>) {
        self.publish(&state);
        if !std::mem::replace(&mut state.ticking, true) {
            tokio::spawn(self.clone().tick());
        }
    }

    /// Polls the pool's load until the queue is empty.
    async fn tick(self: Arc<Self>) {
        loop {
            tokio::time::sleep(TICK).await;
            self.release();
            let mut state = self.state();
            if state.queue.len() == 0 {
                state.ticking = false;
                return;
            }
        }
    }

    /// Grants the turn to the next request, if a replica has room and no other request has the
    /// turn.
    fn release(self: &Arc<Self>) {
        while self.has_waiting() {
            let settings = self.settings();
            let mut state = self.state();
            if state.turn_is_out || self.load.saturated(&settings) {
                return;
            }
            let Some(sender) = state.queue.pop() else {
                return;
            };
            state.turn_is_out = true;
            self.publish(&state);
            drop(state);
            match sender.send(Turn(Some(self.clone()))) {
                Ok(()) => return,
                // The request's client has disconnected. Clear the turn first, because its drop
                // would recurse.
                Err(mut turn) => {
                    turn.0 = None;
                    self.state().turn_is_out = false;
                }
            }
        }
    }

    /// Replaces the settings. Queued requests keep their places.
    pub(crate) fn set(&self, settings: FlowSettings) {
        *self
            .settings
            .write()
            .unwrap_or_else(PoisonError::into_inner) = settings;
    }

    fn settings(&self) -> FlowSettings {
        *self.settings.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all replicas are saturated.
    pub(crate) fn is_saturated(&self) -> bool {
        self.load.saturated(&self.settings())
    }

    pub(crate) fn counts(&self) -> FlowCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        FlowCounts {
            saturated: self.is_saturated(),
            bands: self.state().queue.bands().collect(),
            released: read(&self.released),
            waited_s: read(&self.waited_us) as f64 / 1e6,
            refused: std::array::from_fn(|at| read(&self.refused[at])),
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    fn publish(&self, state: &QueueState) {
        self.waiting.store(state.queue.len(), Ordering::Release);
    }

    fn saw_wait(&self, wait: Duration) {
        let us = wait.as_micros() as u64;
        self.released.fetch_add(1, Ordering::Relaxed);
        self.waited_us.fetch_add(us, Ordering::Relaxed);
        self.last_wait_us.store(us, Ordering::Relaxed);
    }

    fn count(&self, reason: Reason) {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a refusal. Its `Retry-After` is the most recent wait of a queued request, within
    /// bounds.
    fn refusal(&self, reason: Reason) -> ApiError {
        self.count(reason);
        let (least, most) = RETRY_AFTER;
        let wait = self
            .last_wait_us
            .load(Ordering::Relaxed)
            .div_ceil(1_000_000);
        let text = match reason {
            Reason::Sheddable => "requests of this priority do not wait",
            Reason::Full => "the queue is full",
            Reason::Timeout | Reason::ClientGone => "the request waited for as long as it may",
        };
        ApiError::shed(text, wait.clamp(least, most) as u32)
    }
}
