use std::time::Duration;

use crate::RestartBackoff;

/// Exponential backoff before each restart of the engine.
#[derive(Debug)]
pub(crate) struct Backoff {
    config: RestartBackoff,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(config: RestartBackoff) -> Self {
        Self {
            config,
            next: config.initial,
        }
    }

    /// Time to wait after the loss of an engine that was ready for `ready_for` (zero: never ready).
    pub(crate) fn after(&mut self, ready_for: Duration) -> Duration {
        if ready_for >= self.config.reset_after {
            self.next = self.config.initial;
        }
        let wait = self.next;
        self.next = (wait * 2).min(self.config.max);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(1);

    fn waits(backoff: &mut Backoff, ready_for: Duration, count: usize) -> Vec<u128> {
        (0..count)
            .map(|_| backoff.after(ready_for).as_millis())
            .collect()
    }

    #[test]
    fn doubles_up_to_the_maximum() {
        let mut backoff = Backoff::new(RestartBackoff::default());
        assert_eq!(
            waits(&mut backoff, SHORT, 8),
            [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
        );
    }

    #[test]
    fn starts_over_after_a_healthy_time() {
        let mut backoff = Backoff::new(RestartBackoff::default());
        waits(&mut backoff, Duration::ZERO, 4);
        assert_eq!(backoff.after(Duration::from_secs(60)).as_millis(), 200);
        assert_eq!(backoff.after(Duration::from_secs(59)).as_millis(), 400);
    }
}
