//! Timer that wakes the sender when a request is due.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// Wakes the sender at a given time.
pub trait Alarm {
    /// Returns at `due` or later, and immediately if `due` has passed. Cancel-safe.
    fn until(&mut self, due: Instant) -> impl Future<Output = ()>;
}

/// Alarm on a kernel timer (timerfd), because tokio's timer has a resolution of only a millisecond.
#[derive(Debug)]
pub struct TimerFd {
    fd: AsyncFd<OwnedFd>,
}

impl TimerFd {
    /// Must be called in a tokio runtime with IO enabled.
    #[expect(
        deprecated,
        reason = "unsound for types that lose their descriptor, unlike OwnedFd; the new name is \
            unsafe"
    )]
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self {
            fd: AsyncFd::with_interest(fd, Interest::READABLE)?,
        })
    }

    fn arm(&self, after: Duration) -> io::Result<()> {
        let value = Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: after.subsec_nanos().into(),
        };
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: value,
        };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    async fn ring(&self, after: Duration) -> io::Result<()> {
        self.arm(after)?;
        let mut expirations = [0; 8];
        let read = |fd: &OwnedFd| Ok(rustix::io::read(fd, &mut expirations)?);
        self.fd.async_io(Interest::READABLE, read).await?;
        Ok(())
    }
}

impl Alarm for TimerFd {
    async fn until(&mut self, due: Instant) {
        let after = due.saturating_duration_since(Instant::now());
        if !after.is_zero() && self.ring(after).await.is_err() {
            tokio::time::sleep_until(due).await;
        }
    }
}
