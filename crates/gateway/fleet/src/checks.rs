//! Health of a replica, derived from its health checks. Pure.

/// Health check paths, in the order in which they are tried. Penstock serves the first path and
/// answers 503 on it while draining.
pub(crate) const PATHS: [&str; 3] = ["/ready", "/health", "/v1/models"];

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Check {
    Healthy,
    /// The replica finishes its requests and accepts no new ones.
    Draining,
    /// Failure, with the reason.
    Failed(String),
}

/// Health, derived from several checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Health {
    /// No check has completed.
    #[default]
    Unknown,
    Healthy,
    Draining,
    Unhealthy,
}

/// Consecutive results of checks.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    pub health: Health,
    failed: u32,
}

impl Checks {
    /// Records a check. Before any check has succeeded or failed, one failure makes the replica
    /// unhealthy; afterwards, `limit` consecutive failures do.
    pub(crate) fn saw(&mut self, check: &Check, limit: u32) {
        self.failed = match check {
            Check::Failed(_) => self.failed.saturating_add(1),
            Check::Healthy | Check::Draining => 0,
        };
        match check {
            Check::Healthy => self.health = Health::Healthy,
            Check::Draining => self.health = Health::Draining,
            Check::Failed(_) if self.health == Health::Unknown || self.failed >= limit => {
                self.health = Health::Unhealthy;
            }
            Check::Failed(_) => {}
        }
    }
}

/// Result of a check by its HTTP status. `None`: the server lacks this path, so the next path is
/// tried. 3xx and 4xx count as lacking, because some servers require an API key for unknown paths,
/// and redirects are not followed.
pub(crate) fn verdict(status: u16) -> Option<Check> {
    match status {
        200..=299 => Some(Check::Healthy),
        300..=499 => None,
        _ => Some(Check::Failed(format!("status {status}"))),
    }
}

/// Result of a check when every path gave `None`, derived from all their statuses: 401 and 403
/// count as healthy, because a model server has one of the paths, possibly behind a key.
pub(crate) fn verdict_of_none(statuses: &[u16]) -> Check {
    match statuses.iter().any(|status| matches!(status, 401 | 403)) {
        true => Check::Healthy,
        false => Check::Failed(format!("no health check is there, statuses {statuses:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Check {
        Check::Failed("status 500".to_owned())
    }

    #[test]
    fn the_first_failure_decides_only_in_the_beginning() {
        let mut checks = Checks::default();
        checks.saw(&failed(), 2);
        assert_eq!(checks.health, Health::Unhealthy);
        checks.saw(&Check::Healthy, 2);
        checks.saw(&failed(), 2);
        assert_eq!(checks.health, Health::Healthy);
        checks.saw(&failed(), 2);
        assert_eq!(checks.health, Health::Unhealthy);
    }

    #[test]
    fn failures_count_in_a_row() {
        let mut checks = Checks::default();
        for _ in 0..10 {
            checks.saw(&Check::Healthy, 2);
            checks.saw(&failed(), 2);
            assert_eq!(checks.health, Health::Healthy);
        }
        checks.saw(&Check::Draining, 2);
        assert_eq!(checks.health, Health::Draining);
    }

    #[test]
    fn statuses_mean_healthy_failed_or_no_such_path() {
        assert_eq!(verdict(200), Some(Check::Healthy));
        assert_eq!(verdict(404), None);
        assert_eq!(verdict(401), None);
        assert_eq!(verdict(302), None);
        assert!(matches!(verdict(503), Some(Check::Failed(_))));
    }

    #[test]
    fn a_server_without_any_of_the_paths_is_no_replica() {
        for statuses in [&[404, 404, 404][..], &[404, 405, 302], &[410]] {
            let check = verdict_of_none(statuses);
            assert!(matches!(check, Check::Failed(_)), "{statuses:?}");
        }
        assert_eq!(verdict_of_none(&[404, 404, 401]), Check::Healthy);
    }
}
