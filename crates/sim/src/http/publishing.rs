//! Results to seats.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_wire::{Finish, Step, StepStats};

use super::metrics::Counters;
use super::seat::{Fate, Seat};
use crate::driver::Publisher;
use crate::vocabulary::Vocabulary;

pub(crate) struct HttpPublisher {
    seats: HashMap<u64, Seat>,
    vocabulary: Arc<Vocabulary>,
    counters: Arc<Counters>,
}

impl HttpPublisher {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>, counters: Arc<Counters>) -> Self {
        Self {
            seats: HashMap::new(),
            vocabulary,
            counters,
        }
    }
}

impl Publisher for HttpPublisher {
    type Seat = Seat;

    fn open(&mut self, id: u64, seat: Seat) {
        self.counters.asked(seat.usage.prompt_tokens);
        self.seats.insert(id, seat);
    }

    fn left(&mut self, id: u64) {
        self.seats.remove(&id);
    }

    fn begun(&mut self, stats: &StepStats) {
        self.counters.set(stats);
    }

    fn publish(&mut self, step: Step) -> Vec<u64> {
        self.counters.set(&step.stats);
        let mut broken = Vec::new();
        for output in &step.outputs {
            self.counters.output(output);
            let Some(seat) = self.seats.get_mut(&output.id) else {
                continue;
            };
            let fate = seat.take(output, &self.vocabulary);
            // A stalled stream is held open by its seat.
            if matches!(fate, Fate::Ended | Fate::Broken) {
                self.seats.remove(&output.id);
            }
            if fate == Fate::Broken && output.finish == Finish::None {
                broken.push(output.id);
            }
        }
        broken
    }

    fn heartbeat(&mut self, step: Step) {
        self.counters.set(&step.stats);
    }

    fn slipped(&mut self, by: Duration) {
        self.counters.slipped(by);
    }
}
