//! Detects a replica that stops sending in the middle of a response.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

const TICK: Duration = Duration::from_secs(1);
/// Number of ticks without data from an unhealthy replica after which its response is abandoned:
/// few (`SHORT`) if another replica can resume the response, many (`LONG`) if it would be lost.
const SHORT: u32 = 1;
const LONG: u32 = 10;

/// Measures how long the replica of a response has been silent and unhealthy.
#[derive(Debug)]
pub(crate) struct StallTimer {
    tick: Pin<Box<Sleep>>,
    patience: u32,
    /// Whether data has arrived since the last tick.
    is_restarted: bool,
    /// Number of consecutive ticks without data from an unhealthy replica.
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

    /// Records that data has arrived.
    pub(crate) fn restart(&mut self) {
        self.is_restarted = true;
    }

    /// Whether the replica has been silent and unhealthy for too long.
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
