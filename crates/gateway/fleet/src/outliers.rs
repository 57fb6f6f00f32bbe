//! Outlier ejection: detects replicas that fail far more often than the rest. Pure.

use crate::settings::Outliers as Settings;

/// Number of a replica's requests in one comparison period, by result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    pub served: u32,
    pub failed: u32,
}

/// Input of the comparison for one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compared {
    pub tally: Tally,
    /// Whether the replica accepts requests.
    pub available: bool,
    pub ejected: bool,
}

impl Tally {
    /// Share of requests that failed; `None` if there were fewer than `least` requests.
    fn failed_share(self, least: u32) -> Option<f64> {
        let all = f64::from(self.served) + f64::from(self.failed);
        (all >= f64::from(least.max(1))).then(|| f64::from(self.failed) / all)
    }
}

/// Indices into `replicas` of the replicas to eject, worst first: at most `max_share` of the fleet
/// at once, and never the last available replica. Each replica's share of failures is compared with
/// the median of the others, which is robust against further outliers.
pub(crate) fn outliers(replicas: &[Compared], settings: &Settings) -> Vec<usize> {
    let share = |one: &Compared| one.tally.failed_share(settings.min_requests);
    let shares: Vec<Option<f64>> = replicas.iter().map(share).collect();
    let mut found: Vec<(f64, usize)> = Vec::new();
    for (place, (one, share)) in replicas.iter().zip(&shares).enumerate() {
        let others = shares
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != place);
        let others = median(others.filter_map(|(_, share)| *share).collect());
        if let (Some(share), Some(others)) = (share, others)
            && one.available
            && share - others > settings.excess
        {
            found.push((share - others, place));
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let most = ((replicas.len() as f64 * settings.max_share) as usize).max(1);
    let ejected = replicas.iter().filter(|one| one.ejected).count();
    let available = replicas.iter().filter(|one| one.available).count();
    let room = most
        .saturating_sub(ejected)
        .min(available.saturating_sub(1));
    found
        .into_iter()
        .map(|(_, place)| place)
        .take(room)
        .collect()
}

/// Median; the lower of the two middle values if their number is even.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(tallies: &[(u32, u32)]) -> Vec<Compared> {
        let one = |&(served, failed): &(u32, u32)| Compared {
            tally: Tally { served, failed },
            available: true,
            ejected: false,
        };
        tallies.iter().map(one).collect()
    }

    fn found(replicas: &[Compared]) -> Vec<usize> {
        outliers(replicas, &Settings::default())
    }

    #[test]
    fn a_replica_far_above_the_others_is_found() {
        assert_eq!(found(&fleet(&[(100, 0), (50, 50), (99, 1)])), [1]);
        assert_eq!(found(&fleet(&[(100, 0), (80, 20), (99, 1)])), [0; 0]);
    }

    #[test]
    fn all_failing_alike_is_nothing_to_do_with_one_of_them() {
        assert_eq!(found(&fleet(&[(10, 90), (12, 88), (9, 91)])), [0; 0]);
    }

    #[test]
    fn few_requests_prove_nothing() {
        assert_eq!(found(&fleet(&[(100, 0), (0, 19), (100, 0)])), [0; 0]);
        assert_eq!(found(&fleet(&[(0, 0), (0, 100)])), [0; 0]);
    }

    #[test]
    fn the_worst_of_a_share_of_the_fleet_are_ejected() {
        let mut ten = fleet(&[(100, 0); 10]);
        for (place, failed) in [(2, 600), (4, 700), (6, 800), (8, 900)] {
            ten[place].tally = Tally {
                served: 100,
                failed,
            };
        }
        assert_eq!(found(&ten).len(), 3);
        assert_eq!(found(&ten)[0], 8);
        ten[0].ejected = true;
        ten[0].available = false;
        assert_eq!(found(&ten).len(), 2);
    }

    #[test]
    fn the_last_one_stays() {
        let mut two = fleet(&[(100, 0), (0, 100)]);
        assert_eq!(found(&two), [1]);
        two[0].available = false;
        assert_eq!(found(&two), [0; 0]);
    }
}
