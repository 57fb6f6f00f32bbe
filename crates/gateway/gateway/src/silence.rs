//! A replica that has stopped in the middle of an answer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

const TICK: Duration = Duration::from_secs(1);
/// Ticks of silence, with a replica whose health checks fail, before an answer leaves it: few where
/// another replica can continue the answer, many where leaving would end it.
const SHORT: u32 = 1;
const LONG: u32 = 10;

/// Measures how long an answer has stalled.
#[derive(Debug)]
pub(crate) struct StallTimer {
    tick: Pin<Box<Sleep>>,
    patience: u32,
    /// Something has come since the last tick.
    is_restarted: bool,
    /// Ticks without anything, while the replica is not healthy.
    ticks: u32,
}

impl StallTimer {
    pub(crate) fn new(may_go_on: bool) -> Self {
        Self {
            tick: Box::pin(sleep(TICK)),
            patience: if may_go_on { SHORT } else { LONG },
            is_restarted: false,
            ticks: 0,
        }
    }

    /// Something has come.
    pub(crate) fn restart(&mut self) {
        self.is_restarted = true;
    }

    /// Whether the stall has lasted too long.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, is_unhealthy: impl Fn() -> bool) -> bool {
        while let Poll::Ready(()) = self.tick.as_mut().poll(cx) {
            self.tick.as_mut().reset(Instant::now() + TICK);
            self.ticks = match std::mem::take(&mut self.is_restarted) {
                false if is_unhealthy() => self.ticks + 1,
                _ => 0,
            };
            if self.ticks >= self.patience {
                self.ticks = 0;
                return true;
            }
        }
        false
    }
}
