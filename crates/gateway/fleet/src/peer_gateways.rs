//! Estimates the share of the replicas' requests that other gateways sent, from reported loads.
//! Pure.

/// Decay of older reports per new report.
const KEPT: f32 = 1.0 - 1.0 / 256.0;

/// Exponentially weighted counts of requests. Their ratio is a load ratio even if reports rarely
/// show a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Others {
    foreign: f32,
    all: f32,
}

impl Others {
    /// Adds a report of `requests`, of which `own` are this gateway's. A report with fewer than
    /// `own` misses requests still under way; it counts negatively and balances random excesses.
    pub(crate) fn saw(&mut self, requests: f32, own: f32) {
        let all = requests.max(own);
        if !all.is_finite() || all <= 0.0 {
            return;
        }
        self.foreign = KEPT * self.foreign + (requests - own);
        self.all = KEPT * self.all + all;
    }

    /// Share of other gateways, 0 to 1, with one pseudo-request added to theirs: before any
    /// observation, other gateways must be assumed.
    pub(crate) fn share(self) -> f32 {
        ((self.foreign.max(0.0) + 1.0) / (self.all + 1.0)).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_that_of_the_load_and_is_followed() {
        let mut others = Others::default();
        assert_eq!(others.share(), 1.0, "nothing says that there are none");
        for n in 0..1000 {
            // a report in ten shows requests, alternately this gateway's and one of two others
            let busy = n % 10 == 0;
            let own = f32::from(u8::from(busy && n % 30 == 0));
            others.saw(f32::from(u8::from(busy)), own);
        }
        assert!((others.share() - 2.0 / 3.0).abs() < 0.05, "{others:?}");
        for _ in 0..2000 {
            others.saw(4.0, 4.0);
        }
        assert!(others.share() < 0.01, "{others:?}");
    }

    #[test]
    fn own_requests_under_way_are_no_others() {
        let mut others = Others::default();
        for n in 0..100u8 {
            // reported once before and once after they were counted
            others.saw(f32::from(3 + n % 3), 4.0);
        }
        assert!(others.share() < 0.01, "{others:?}");
        others.saw(f32::NAN, 0.0);
        others.saw(f32::INFINITY, 0.0);
        others.saw(-1.0, 0.0);
        assert!(others.share() < 0.01, "{others:?}");
    }
}
