//! Requests of other gateways: the share of the requests at the replicas that this one did not
//! send, by what the replicas reported. Pure.

/// What is left of older reports with each further one.
const KEPT: f32 = 1.0 - 1.0 / 256.0;

/// Requests of the reports, weighted by age. Their ratio is that of the load, however seldom a
/// report shows a request at all.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Others {
    foreign: f32,
    all: f32,
}

impl Others {
    /// Notes a report of `requests` when `own` were this gateway's. Fewer than its own are requests
    /// that have not arrived; they weigh against others, which chance makes too many elsewhere.
    pub(crate) fn saw(&mut self, requests: f32, own: f32) {
        let all = requests.max(own);
        if !all.is_finite() || all <= 0.0 {
            return;
        }
        self.foreign = KEPT * self.foreign + (requests - own);
        self.all = KEPT * self.all + all;
    }

    /// Share of others, 0 to 1, as if one more request were theirs: before a report has shown any,
    /// nothing says that there is no other gateway.
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
