//! Incremental comparison of two responses. Keeps only the text by which one response is ahead of
//! the other.

use std::collections::{BTreeMap, VecDeque};

use crate::events::EventContent;
use crate::mirror::counts::{Difference, Side};

/// The comparison of the two responses to one request.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    choices: BTreeMap<u64, Choice>,
}

#[derive(Debug, Default)]
struct Choice {
    /// The text by which one response is ahead of the other.
    ahead: String,
    is_ahead: Option<Side>,
    equal: Difference,
    /// For each event of the primary response that has not been matched yet: where its text ends,
    /// in characters from the start.
    ends: VecDeque<usize>,
    said: usize,
    finishes: [Option<String>; 2],
}

impl Comparison {
    /// Adds text of one response; returns the first difference, if one is found.
    pub(crate) fn add(&mut self, side: Side, said: EventContent) -> Option<Difference> {
        for (choice, reason) in said.finishes {
            let choice = self.choices.entry(choice).or_default();
            choice.finishes[side as usize] = Some(reason);
        }
        let texts = said.texts.into_iter();
        texts
            .map(|(choice, text)| {
                let choice = self.choices.entry(choice).or_default();
                choice.add(side, text)
            })
            .find_map(|parts| parts)
    }

    /// Number of bytes that are held until the other response catches up.
    pub(crate) fn held(&self) -> usize {
        let choices = self.choices.values();
        choices
            .map(|one| one.ahead.len() + 8 * one.ends.len())
            .sum()
    }

    /// Compares the responses once both have ended; returns the first difference in text or finish
    /// reason.
    pub(crate) fn end(&self) -> Option<Difference> {
        let mut choices = self.choices.values();
        let parts = |one: &&Choice| !one.ahead.is_empty() || one.finishes[0] != one.finishes[1];
        choices.find(parts).map(|one| one.equal)
    }
}

impl Choice {
    fn add(&mut self, side: Side, text: String) -> Option<Difference> {
        if side == Side::Primary {
            self.said += text.chars().count();
            self.ends.push_back(self.said);
        }
        if self.ahead.is_empty() || self.is_ahead == Some(side) {
            self.is_ahead = Some(side);
            self.ahead.push_str(&text);
            return None;
        }
        let pairs = self.ahead.chars().zip(text.chars());
        let equal: usize = pairs
            .take_while(|(a, b)| a == b)
            .map(|(a, _)| a.len_utf8())
            .sum();
        self.saw_equal(text[..equal].chars().count());
        let differs = equal < self.ahead.len() && equal < text.len();
        self.ahead.drain(..equal);
        if self.ahead.is_empty() {
            self.is_ahead = Some(side);
            self.ahead.push_str(&text[equal..]);
        }
        differs.then_some(self.equal)
    }

    fn saw_equal(&mut self, characters: usize) {
        self.equal.characters += characters;
        while self
            .ends
            .front()
            .is_some_and(|end| *end <= self.equal.characters)
        {
            self.ends.pop_front();
            self.equal.tokens += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn said(choice: u64, text: &str) -> EventContent {
        EventContent {
            texts: vec![(choice, text.to_owned())],
            ..EventContent::default()
        }
    }

    fn parts(text: &str, sizes: &[usize]) -> Vec<String> {
        let (mut parts, mut rest) = (Vec::new(), text.chars().peekable());
        for size in sizes.iter().cycle() {
            if rest.peek().is_none() {
                break;
            }
            parts.push(rest.by_ref().take(*size).collect());
        }
        parts
    }

    proptest! {
        #[test]
        fn the_first_difference_is_that_of_the_whole_texts(
            (same, first, second) in ("[aé\u{1F600}]{0,20}", "[ab]{0,5}", "[ab]{0,5}"),
            sizes in prop::collection::vec(1..5usize, 1..4),
            other in prop::collection::vec(1..5usize, 1..4),
            order in prop::collection::vec(any::<bool>(), 1..40),
        ) {
            let (primary, mirror) = (format!("{same}{first}"), format!("{same}{second}"));
            let mut left = [parts(&primary, &sizes), parts(&mirror, &other)];
            let ends: Vec<usize> = left[0].iter().scan(0, |sum, part| {
                *sum += part.chars().count();
                Some(*sum)
            }).collect();
            left.iter_mut().for_each(|parts| parts.reverse());
            let (mut comparison, mut found) = (Comparison::default(), None);
            for turn in order.iter().cycle() {
                if left.iter().all(Vec::is_empty) || found.is_some() {
                    break;
                }
                let side = if *turn { Side::Primary } else { Side::Mirror };
                let side = if left[side as usize].is_empty() {
                    if *turn { Side::Mirror } else { Side::Primary }
                } else {
                    side
                };
                let part = left[side as usize].pop().unwrap();
                found = comparison.add(side, said(0, &part));
                prop_assert!(comparison.held() <= primary.len().max(mirror.len()) + 8 * ends.len());
            }
            let found = found.or_else(|| comparison.end());
            // computed another way, from the complete texts
            let equal = primary.chars().zip(mirror.chars()).take_while(|(a, b)| a == b).count();
            let tokens = ends.iter().filter(|end| **end <= equal).count();
            let wanted = (primary != mirror).then_some(Difference { characters: equal, tokens });
            prop_assert_eq!(found, wanted);
        }
    }

    #[test]
    fn choices_are_apart_and_reasons_of_the_end_count() {
        let mut comparison = Comparison::default();
        assert_eq!(comparison.add(Side::Primary, said(0, "a")), None);
        assert_eq!(comparison.add(Side::Mirror, said(1, "b")), None);
        assert_eq!(comparison.add(Side::Primary, said(1, "b")), None);
        assert_eq!(comparison.add(Side::Mirror, said(0, "a")), None);
        assert_eq!(comparison.end(), None);
        let finish = |reason: &str| EventContent {
            finishes: vec![(1, reason.to_owned())],
            ..EventContent::default()
        };
        comparison.add(Side::Primary, finish("stop"));
        comparison.add(Side::Mirror, finish("length"));
        let wanted = Difference {
            characters: 1,
            tokens: 1,
        };
        assert_eq!(comparison.end(), Some(wanted));
    }
}
