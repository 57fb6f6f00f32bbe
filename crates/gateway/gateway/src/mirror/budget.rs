//! The budget of mirroring (requests in flight, bytes held), and the sampling of requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;

use crate::mirror::MirrorSettings;
use crate::mirror::counts::{Counts, Reason};

/// Step of the sequence that draws the sample: 2^64 divided by the golden ratio, which spreads the
/// draws evenly over the 64-bit range.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The mirroring of one pool's requests.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    settings: ArcSwapOption<MirrorSettings>,
    drawn: AtomicU64,
    in_flight: AtomicUsize,
    held: AtomicUsize,
    pub(crate) counts: Counts,
}

impl Mirror {
    pub(crate) fn new(settings: Option<MirrorSettings>) -> Arc<Self> {
        let mirror = Self::default();
        mirror.set(settings.map(Arc::new));
        Arc::new(mirror)
    }

    /// Replaces the settings; requests that are being mirrored are unaffected.
    pub(crate) fn set(&self, settings: Option<Arc<MirrorSettings>>) {
        self.settings.store(settings);
    }

    pub(crate) fn settings(&self) -> Option<Arc<MirrorSettings>> {
        self.settings.load_full()
    }

    /// Draws whether the next request is in the sample, which is a `share` of all requests.
    pub(crate) fn draws(&self, share: f64) -> bool {
        let number = self
            .drawn
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_mul(STEP);
        (number as f64) < share * 2f64.powi(64)
    }

    /// Admits one more mirrored request, whose body of `bytes` bytes counts against the budget.
    pub(crate) fn admit(
        self: &Arc<Self>,
        settings: &MirrorSettings,
        bytes: usize,
    ) -> Result<Arc<Ticket>, Reason> {
        let before = self.in_flight.fetch_add(1, Ordering::AcqRel);
        let ticket = Arc::new(Ticket {
            mirror: self.clone(),
            most: settings.held_bytes,
            held: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        });
        if before >= settings.in_flight {
            return Err(Reason::InFlight);
        }
        match ticket.hold(bytes) {
            true => Ok(ticket),
            false => Err(Reason::HeldBytes),
        }
    }

    /// Number of mirrored requests in flight, and of the bytes that they hold.
    pub(crate) fn taken(&self) -> (usize, usize) {
        let read = |count: &AtomicUsize| count.load(Ordering::Acquire);
        (read(&self.in_flight), read(&self.held))
    }
}

/// A mirrored request's share of the budget, released on drop.
#[derive(Debug)]
pub(crate) struct Ticket {
    mirror: Arc<Mirror>,
    most: usize,
    held: AtomicUsize,
    over: AtomicBool,
}

impl Ticket {
    /// Counts more bytes as held. Returns false if the budget is or was exceeded.
    pub(crate) fn hold(&self, bytes: usize) -> bool {
        self.held.fetch_add(bytes, Ordering::AcqRel);
        let before = self.mirror.held.fetch_add(bytes, Ordering::AcqRel);
        if before + bytes > self.most {
            self.over.store(true, Ordering::Release);
        }
        !self.is_over()
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::AcqRel);
        self.mirror.held.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Whether this request has ever exceeded the budget.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.mirror.counts
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let held = self.held.load(Ordering::Acquire);
        self.mirror.held.fetch_sub(held, Ordering::AcqRel);
        self.mirror.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(in_flight: usize, held_bytes: usize) -> MirrorSettings {
        let text = format!(
            r#"{{"pool":"b","share":1,"in_flight":{in_flight},"held_bytes":{held_bytes}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_sample_has_its_share_and_is_spread() {
        for share in [0.0, 0.01, 0.25, 0.5, 1.0] {
            let mirror = Mirror::default();
            let drawn: Vec<bool> = (0..1000).map(|_| mirror.draws(share)).collect();
            for part in drawn.chunks(200) {
                let count = part.iter().filter(|one| **one).count() as f64;
                assert!((count - share * 200.0).abs() <= 2.0, "{share}: {count}");
            }
        }
    }

    #[test]
    fn requests_and_bytes_are_bounded_and_given_back() {
        let mirror = Mirror::new(None);
        let settings = settings(2, 1024);
        let first = mirror.admit(&settings, 1000).unwrap();
        assert_eq!(mirror.admit(&settings, 25).unwrap_err(), Reason::HeldBytes);
        let second = mirror.admit(&settings, 24).unwrap();
        assert_eq!(mirror.admit(&settings, 0).unwrap_err(), Reason::InFlight);
        assert_eq!(mirror.taken(), (2, 1024));
        first.release(500);
        assert!(second.hold(400));
        assert!(!second.hold(400));
        second.release(800);
        assert!(second.is_over(), "for good");
        drop((first, second));
        assert_eq!(mirror.taken(), (0, 0));
    }
}
