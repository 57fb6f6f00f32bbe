//! Pickers turn the candidates' total scores into a ranking.

use serde::Deserialize;

use crate::request::{draw, mix};

/// Rule that derives the ranking from the totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Picker {
    /// Highest total, with random tie-breaking.
    #[default]
    MaxScore,
    /// Random, with probability proportional to the total (A-Res: Efraimidis and Spirakis, 2006).
    WeightedRandom,
    /// Uniformly random, independent of the totals.
    Random,
    /// Round robin, independent of the totals.
    RoundRobin,
}

impl Picker {
    /// Indices into `totals`, best first. Totals must be finite and not negative.
    pub(crate) fn rank(self, totals: &[f32], ticket: u64) -> Vec<usize> {
        let lot = |place: usize| draw(ticket, place as u64);
        let key = |place: usize| match self {
            Self::MaxScore => totals[place],
            // Computed in logarithms: the powers of A-Res underflow to 0 for small totals.
            Self::WeightedRandom => lot(place).max(1e-9).ln() / totals[place].max(1e-9),
            Self::Random => 0.0,
            Self::RoundRobin => {
                -(((place as u64 + totals.len() as u64 - ticket % totals.len() as u64)
                    % totals.len() as u64) as f32)
            }
        };
        let mut keyed: Vec<(f32, u64, usize)> = (0..totals.len())
            .map(|place| (key(place), mix(ticket ^ mix(place as u64)), place))
            .collect();
        keyed.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
        keyed.into_iter().map(|(_, _, place)| place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of wins of each candidate, in a thousand decisions with different tickets.
    fn wins(picker: Picker, totals: &[f32]) -> Vec<usize> {
        let mut won = vec![0; totals.len()];
        (0..1000).for_each(|ticket| won[picker.rank(totals, ticket)[0]] += 1);
        won
    }

    #[test]
    fn the_highest_total_wins_and_equal_ones_share() {
        assert_eq!(Picker::MaxScore.rank(&[0.5, 2.0, 1.0], 7), [1, 2, 0]);
        let won = wins(Picker::MaxScore, &[1.0, 0.2, 1.0]);
        assert_eq!(won[1], 0);
        assert!((400..600).contains(&won[0]), "{won:?}");
    }

    #[test]
    fn chances_follow_the_totals_when_weighted_and_nothing_when_random() {
        let won = wins(Picker::WeightedRandom, &[3.0, 1.0, 0.0]);
        assert!((680..820).contains(&won[0]), "{won:?}");
        assert!(won[2] < 5, "{won:?}");
        let won = wins(Picker::WeightedRandom, &[0.003, 0.001]);
        assert!((680..820).contains(&won[0]), "{won:?}");
        let won = wins(Picker::Random, &[3.0, 1.0, 0.0]);
        assert!(won.iter().all(|w| (270..400).contains(w)), "{won:?}");
    }

    #[test]
    fn round_robin_takes_turns_and_falls_back_to_the_next() {
        let turns = |ticket| Picker::RoundRobin.rank(&[0.1, 9.0, 0.5], ticket);
        assert_eq!(turns(0), [0, 1, 2]);
        assert_eq!(turns(1), [1, 2, 0]);
        assert_eq!(turns(5), [2, 0, 1]);
    }
}
