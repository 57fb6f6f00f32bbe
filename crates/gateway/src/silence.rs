//! A replica that has stopped in the middle of an answer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

const TICK: Duration = Duration::from_secs(1);
/// How long an answer is silent, while the health checks of its replica fail, before it leaves it:
/// one that can go on elsewhere does so soon, one that would end here waits for better times.
const SHORT: u32 = 1;
const LONG: u32 = 10;

/// How long nothing of an answer has come.
#[derive(Debug)]
pub(crate) struct Silence {
    tick: Pin<Box<Sleep>>,
    patience: u32,
    /// Something has come since the last tick.
    is_broken: bool,
    /// Ticks without anything, while the replica is not healthy.
    ticks: u32,
}

impl Silence {
    pub(crate) fn new(may_go_on: bool) -> Self {
        Self {
            tick: Box::pin(sleep(TICK)),
            patience: if may_go_on { SHORT } else { LONG },
            is_broken: false,
            ticks: 0,
        }
    }

    /// Something has come.
    pub(crate) fn broken(&mut self) {
        self.is_broken = true;
    }

    /// Whether it has lasted for too long.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, is_unhealthy: impl Fn() -> bool) -> bool {
        while let Poll::Ready(()) = self.tick.as_mut().poll(cx) {
            self.tick.as_mut().reset(Instant::now() + TICK);
            self.ticks = match std::mem::take(&mut self.is_broken) {
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
