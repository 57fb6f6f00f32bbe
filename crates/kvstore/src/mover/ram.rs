//! The RAM tier: copies between blocks of the pool and slots, on a thread of its own.
//!
//! The engine decides which slot holds which block. Loads come before stores, but a load of a slot
//! that a queued store fills comes after that store: each slot sees its copies in their order.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::answers::Answers;
use super::clock::Clock;
use super::copying::Slots;
use super::limits::Limits;
use super::transfer::{Moved, Pool};

/// The blocks that a copy has borrowed: those of all groups slot by slot, `None` where a group
/// needs none.
pub(crate) enum Borrowed<P: Pool> {
    Load(Vec<Option<P::Write>>),
    Store(Vec<P::Read>),
}

impl<P: Pool> Borrowed<P> {
    fn is_store(&self) -> bool {
        matches!(self, Self::Store(_))
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Load(blocks) => blocks.iter().flatten().map(|block| block.len()).sum(),
            Self::Store(blocks) => blocks.iter().map(|block| block.len()).sum(),
        }
    }
}

struct Copy<P: Pool> {
    id: u64,
    asked: Duration,
    /// When it was begun, and how long it took so far.
    began: Option<Duration>,
    took: Duration,
    slots: Vec<usize>,
    blocks: Borrowed<P>,
    /// Slots that were copied.
    copied: usize,
}

struct State<P: Pool> {
    loads: VecDeque<Copy<P>>,
    /// Stores, and loads that must wait for one of them.
    ordered: VecDeque<Copy<P>>,
    /// Stores of each slot that have not ended.
    storing: Vec<u32>,
    closed: bool,
    live: bool,
}

impl<P: Pool> State<P> {
    fn next(&mut self) -> Option<Copy<P>> {
        self.loads.pop_front().or_else(|| self.ordered.pop_front())
    }

    /// A copy that ends, or never begins, fills its slots no more.
    fn forget(&mut self, copy: &Copy<P>) {
        if copy.blocks.is_store() {
            copy.slots.iter().for_each(|&slot| self.storing[slot] -= 1);
        }
    }
}

/// See the module's text.
pub(crate) struct Ram<P: Pool> {
    slots: usize,
    /// KV groups.
    groups: usize,
    /// Slots of a store after which loads have their turn.
    piece: usize,
    answers: Arc<Answers>,
    clock: Arc<dyn Clock>,
    state: Mutex<State<P>>,
    changed: Condvar,
}

impl<P: Pool> Ram<P> {
    /// Reserves the slots, each of a block of so many bytes of every group, and starts the thread.
    ///
    /// # Errors
    /// The system refused one of them.
    pub(crate) fn start(
        slots: usize,
        blocks: Vec<usize>,
        limits: Limits,
        answers: Arc<Answers>,
        clock: Arc<dyn Clock>,
    ) -> std::io::Result<Arc<Self>> {
        let (groups, slot_bytes) = (blocks.len(), blocks.iter().sum::<usize>());
        let memory = Slots::new(slots, blocks, limits.copy_threads)?;
        let state = State {
            loads: VecDeque::new(),
            ordered: VecDeque::new(),
            storing: vec![0; slots],
            closed: false,
            live: true,
        };
        let ram = Arc::new(Self {
            slots,
            groups,
            piece: (limits.piece / slot_bytes.max(1)).max(1),
            answers,
            clock,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&ram);
        let thread = std::thread::Builder::new().name("penstock-kv-ram".into());
        thread.spawn(move || own.serve(memory))?;
        Ok(ram)
    }

    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slots of a transfer, one for each of its `blocks` of a group; those of a store must
    /// differ.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn slots(
        &self,
        slots: &[i32],
        blocks: usize,
        store: bool,
    ) -> Result<Vec<usize>, String> {
        if slots.len() != blocks {
            return Err(format!("{} slots for {blocks} blocks", slots.len()));
        }
        let limit = self.slots;
        let number = |&slot: &i32| match usize::try_from(slot) {
            Ok(number) if number < limit => Ok(number),
            _ => Err(format!("slot {slot} is not in 0..{limit}")),
        };
        let numbers: Vec<usize> = slots.iter().map(number).collect::<Result<_, _>>()?;
        let mut sorted = if store { numbers.clone() } else { Vec::new() };
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("slot {} is to be filled twice", pair[0])),
            None => Ok(numbers),
        }
    }

    /// Takes a copy in; `slots` are checked.
    pub(crate) fn submit(&self, id: u64, slots: Vec<usize>, blocks: Borrowed<P>) {
        let copy = Copy {
            id,
            asked: self.clock.now(),
            began: None,
            took: Duration::ZERO,
            slots,
            blocks,
            copied: 0,
        };
        let mut state = self.lock();
        if state.closed {
            drop(state);
            self.refuse(vec![copy], "ram is closed");
            return;
        }
        let store = copy.blocks.is_store();
        if store {
            for &slot in &copy.slots {
                state.storing[slot] += 1;
            }
        }
        if store || copy.slots.iter().any(|&slot| state.storing[slot] > 0) {
            state.ordered.push_back(copy);
        } else {
            state.loads.push_back(copy);
        }
        self.changed.notify_all();
    }

    fn refuse(&self, copies: Vec<Copy<P>>, why: &str) {
        for copy in copies {
            // Blocks are given back before the answer is visible.
            drop(copy.blocks);
            self.answers.put(Moved::refused(copy.id, why));
        }
    }

    /// Answers those of the transfers that were not begun.
    pub(crate) fn cancel(&self, ids: &[u64]) {
        self.withdraw(|copy| ids.contains(&copy.id));
    }

    fn withdraw(&self, wanted: impl Fn(&Copy<P>) -> bool) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let mut taken = Vec::new();
        for queue in [&mut state.loads, &mut state.ordered] {
            let copies = queue.drain(..);
            let (out, stay): (VecDeque<_>, _) =
                copies.partition(|copy| copy.began.is_none() && wanted(copy));
            taken.extend(out);
            *queue = stay;
        }
        taken.iter().for_each(|copy| state.forget(copy));
        drop(guard);
        self.refuse(taken, "");
    }

    fn serve(&self, mut memory: Slots) {
        while let Some(mut copy) = self.begin() {
            let began = self.clock.now();
            copy.began.get_or_insert(began);
            self.advance(&mut memory, &mut copy);
            let now = self.clock.now();
            copy.took += now.saturating_sub(began);
            if copy.copied < copy.slots.len() {
                self.lock().ordered.push_front(copy);
            } else {
                self.end(copy);
            }
        }
    }

    /// Waits for a copy; `None` at the end.
    fn begin(&self) -> Option<Copy<P>> {
        let mut state = self.lock();
        loop {
            if let Some(copy) = state.next() {
                return Some(copy);
            }
            if state.closed {
                state.live = false;
                self.changed.notify_all();
                return None;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Copies all of a load, or a piece of a store.
    fn advance(&self, memory: &mut Slots, copy: &mut Copy<P>) {
        let from = copy.copied;
        match &mut copy.blocks {
            Borrowed::Load(blocks) => {
                memory.load(&copy.slots, blocks);
                copy.copied = copy.slots.len();
            }
            Borrowed::Store(blocks) => {
                let to = (from + self.piece).min(copy.slots.len());
                let own = from * self.groups..to * self.groups;
                memory.store(&copy.slots[from..to], &blocks[own]);
                copy.copied = to;
            }
        }
    }

    fn end(&self, copy: Copy<P>) {
        let waited = copy.began.unwrap_or(copy.asked).saturating_sub(copy.asked);
        let bytes = copy.blocks.bytes() as u64;
        self.lock().forget(&copy);
        drop(copy.blocks);
        self.answers.put(Moved {
            id: copy.id,
            done: true,
            bytes,
            seconds: copy.took.as_secs_f64(),
            waited: waited.as_secs_f64(),
            ..Moved::default()
        });
    }

    /// Ends the tier: copies that were not begun are answered as not done.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.withdraw(|_| true);
        self.changed.notify_all();
        let live = |s: &mut State<P>| s.live;
        let patience = Duration::from_secs(10);
        let waited = self.changed.wait_timeout_while(self.lock(), patience, live);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
