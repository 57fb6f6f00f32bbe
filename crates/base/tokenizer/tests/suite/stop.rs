//! Stop strings compared with a search over the whole text.

use penstock_tokenizer::StopStrings;
use proptest::prelude::*;

/// The first position at which a stop string is complete; of several, the longest, then the first
/// in the list.
fn naive(text: &str, stops: &[String]) -> Option<(usize, usize)> {
    let ends = text
        .char_indices()
        .map(|(at, character)| at + character.len_utf8());
    for end in ends {
        let complete = stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| !stop.is_empty() && text[..end].ends_with(*stop));
        let longest = complete.max_by_key(|(index, stop)| (stop.len(), usize::MAX - index));
        if let Some((index, stop)) = longest {
            return Some((index, end - stop.len()));
        }
    }
    None
}

/// Feeds `text` in pieces of `lengths` characters, cyclically. Returns the emitted text and the
/// stop string that ended it.
fn streamed(
    text: &str,
    stops: &[String],
    lengths: &[usize],
    include: bool,
) -> (String, Option<usize>) {
    let mut watch = StopStrings::new(stops.to_vec()).include_stop(include);
    let mut lengths = lengths.iter().cycle();
    let mut rest: Vec<char> = text.chars().collect();
    let mut out = String::new();
    while !rest.is_empty() {
        let length = (*lengths.next().unwrap()).min(rest.len());
        let piece: String = rest.drain(..length).collect();
        let outcome = watch.push(&piece);
        out.push_str(&outcome.emit);
        if outcome.stopped.is_some() {
            assert_eq!(watch.finish(), "");
            return (out, outcome.stopped);
        }
    }
    out.push_str(&watch.finish());
    (out, None)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_cut_gives_what_the_naive_search_gives(
        text in "[abé🦊]{0,40}",
        stops in prop::collection::vec("[abé🦊]{0,5}", 0..4),
        lengths in prop::collection::vec(1usize..6, 1..5),
        include: bool,
    ) {
        let (out, stopped) = streamed(&text, &stops, &lengths, include);
        match naive(&text, &stops) {
            None => prop_assert_eq!((out, stopped), (text, None)),
            Some((index, start)) => {
                let end = if include { start + stops[index].len() } else { start };
                prop_assert_eq!((out.as_str(), stopped), (&text[..end], Some(index)));
            }
        }
    }

    /// Held-back text is always a prefix of a stop string, so nothing is delayed without a reason.
    #[test]
    fn no_more_is_held_than_may_become_a_stop(text in "[ab]{0,30}", stop in "[ab]{1,5}c") {
        let mut watch = StopStrings::new(vec![stop.clone()]);
        prop_assert_eq!(watch.push(&text).stopped, None);
        let held = watch.finish();
        prop_assert!(stop.starts_with(&held));
        let mut tails = (0..stop.len()).rev().filter(|&length| text.ends_with(&stop[..length]));
        let longest = tails.next().unwrap_or(0);
        prop_assert_eq!(held.len(), longest);
    }
}

#[test]
fn text_after_the_stop_is_dropped() {
    let mut watch = StopStrings::new(vec!["\n\n".to_owned()]);
    assert_eq!(watch.push("one\n").emit, "one");
    let outcome = watch.push("\ntwo");
    assert_eq!((outcome.emit.as_str(), outcome.stopped), ("", Some(0)));
    let later = watch.push("three");
    assert_eq!((later.emit.as_str(), later.stopped), ("", Some(0)));
    assert_eq!(watch.finish(), "");
}

#[test]
fn the_stop_that_is_complete_first_wins() {
    let stops = ["abcd".to_owned(), "bc".to_owned()];
    assert_eq!(
        streamed("xabcd", &stops, &[1], false),
        ("xa".to_owned(), Some(1))
    );
    assert_eq!(
        streamed("xabcd", &stops, &[5], false),
        ("xa".to_owned(), Some(1))
    );
    let nested = ["c".to_owned(), "bc".to_owned()];
    assert_eq!(
        streamed("abc", &nested, &[2], false),
        ("a".to_owned(), Some(1))
    );
}

#[test]
fn hostile_patterns_stay_linear() {
    let mut watch = StopStrings::new(vec!["a".repeat(100_000) + "b"; 4]);
    let text = "a".repeat(1_000_000);
    let mut out = watch.push(&text).emit;
    out.push_str(&watch.finish());
    assert_eq!(out, text);
}
