//! Estimates the share of the replicas' requests that other gateways sent, from the loads that
//! replicas report. Pure.

/// Factor by which the weight of older reports falls with each new report.
const KEPT: f32 = 1.0 - 1.0 / 256.0;

/// Exponentially weighted sums of requests over reports. Their ratio is a share of the load even if
/// few reports show a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Others {
    foreign: f32,
    all: f32,
}

impl Others {
    /// Adds a report that shows `requests`, while this gateway has `own` requests in flight at the
    /// replica. A report of fewer than `own` misses requests that have not arrived yet. Such
    /// reports count negatively, and balance reports that happen to show too many.
    pub(crate) fn saw(&mut self, requests: f32, own: f32) {
        let all = requests.max(own);
        if !all.is_finite() || all <= 0.0 {
            return;
        }
        self.foreign = KEPT * self.foreign + (requests - own);
        self.all = KEPT * self.all + all;
    }

    /// Share of the requests that other gateways sent, 0 to 1. One pseudo-request is added to the
    /// others' requests, so that without observations the share is 1.
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
            // one report in ten shows a request, in turn of this gateway and of two others
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
            // own requests, which reports show sometimes before and sometimes after they are
            // counted here
            others.saw(f32::from(3 + n % 3), 4.0);
        }
        assert!(others.share() < 0.01, "{others:?}");
        others.saw(f32::NAN, 0.0);
        others.saw(f32::INFINITY, 0.0);
        others.saw(-1.0, 0.0);
        assert!(others.share() < 0.01, "{others:?}");
    }
}
