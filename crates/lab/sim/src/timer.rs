//! Timers with a resolution below a millisecond. Tokio's timers have a resolution of a millisecond,
//! and steps can be shorter.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// A kernel timer (timerfd), as precise as the kernel.
pub(crate) struct PreciseTimer {
    file: AsyncFd<OwnedFd>,
}

pub(crate) trait Timer {
    /// Returns at `moment` or shortly after; immediately if it has passed. Cancel-safe.
    fn wait_until(&mut self, moment: Instant) -> impl Future<Output = ()> + Send;
}

/// Tokio's timer, which can be paused in tests.
#[cfg(test)]
pub(crate) struct TokioTimer;

#[cfg(test)]
impl Timer for TokioTimer {
    async fn wait_until(&mut self, moment: Instant) {
        tokio::time::sleep_until(moment).await;
    }
}

impl PreciseTimer {
    /// Must be called inside a tokio runtime.
    #[expect(
        deprecated,
        reason = "the replacement is unsafe for files that close behind tokio's back; this one \
         is owned"
    )]
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let file = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self {
            file: AsyncFd::new(file)?,
        })
    }

    /// Sets the timer. Setting it again clears an earlier expiry.
    fn arm(&self, after: Duration) -> io::Result<()> {
        let value = Timespec {
            tv_sec: after.as_secs() as i64,
            tv_nsec: i64::from(after.subsec_nanos()),
        };
        let once = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: value,
        };
        timerfd_settime(&self.file, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    async fn expired(&self) -> io::Result<()> {
        loop {
            let mut guard = self.file.readable().await?;
            let mut count = [0; 8];
            match guard.try_io(|file| rustix::io::read(file, &mut count).map_err(Into::into)) {
                Ok(read) => return read.map(drop),
                Err(_would_block) => {}
            }
        }
    }
}

impl Timer for PreciseTimer {
    async fn wait_until(&mut self, moment: Instant) {
        let after = moment.saturating_duration_since(Instant::now());
        // A timer that is set to zero would never expire.
        if after.is_zero() {
            return;
        }
        let waited = match self.arm(after) {
            Ok(()) => self.expired().await,
            Err(error) => Err(error),
        };
        if waited.is_err() {
            tokio::time::sleep_until(moment).await;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn it_never_returns_early_and_can_be_dropped() {
        let mut timer = PreciseTimer::new().unwrap();
        for us in [0, 1, 50, 300, 2_500] {
            let moment = Instant::now() + Duration::from_micros(us);
            timer.wait_until(moment).await;
            assert!(Instant::now() >= moment);
        }
        let far = Instant::now() + Duration::from_secs(3600);
        tokio::select! {
            () = timer.wait_until(far) => panic!("an hour has passed"),
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
        let moment = Instant::now() + Duration::from_micros(200);
        timer.wait_until(moment).await;
        assert!(Instant::now() >= moment);
    }
}
