//! Masks compared with an independent oracle: the automata of the crate `regex-automata`.
use std::time::Duration;

use penstock_structured_output::{Compiler, Matcher, Vocabulary};
use penstock_wire::{Grammar, GrammarKind};
use proptest::prelude::*;
use regex_automata::{
    Anchored,
    dfa::{Automaton, dense},
    util::start,
};

const END: u32 = 0;
const OTHER_END: u32 = 1;
const LIMIT: Duration = Duration::from_secs(20);

/// End tokens, and all texts of one or two out of a few characters.
fn tokens() -> Vec<Vec<u8>> {
    let letters = ["a", "b", "c", "1", "2", "-", " ", "\"", "\\", "é"];
    let mut tokens = vec![b"<end>".to_vec(), b"<other>".to_vec()];
    tokens.extend(letters.iter().map(|l| l.as_bytes().to_vec()));
    for first in letters {
        tokens.extend(letters.iter().map(|l| format!("{first}{l}").into_bytes()));
    }
    // The single bytes of é.
    tokens.extend([vec![0xc3], vec![0xa9], vec![b'a', 0xc3]]);
    tokens
}

fn compiler() -> Compiler {
    let special = [(END, "<end>"), (OTHER_END, "<other>")];
    let special = special.map(|(id, text)| (text.to_owned(), id));
    Compiler::new(Vocabulary::of_tokens(tokens(), special.to_vec()).unwrap())
}

fn matcher(kind: GrammarKind, text: &str) -> Matcher {
    let compiled = compiler().compile(&Grammar::new(kind, text), LIMIT);
    compiled.unwrap().matcher(vec![END, OTHER_END])
}

/// The tokens that may follow a prefix of a text that `pattern` matches as a whole.
struct Oracle(dense::DFA<Vec<u32>>);

impl Oracle {
    fn new(pattern: &str) -> Self {
        let config = dense::Config::new().start_kind(regex_automata::dfa::StartKind::Anchored);
        let whole = format!("(?:{pattern})\\z");
        Self(
            dense::Builder::new()
                .configure(config)
                .build(&whole)
                .unwrap(),
        )
    }

    /// Whether a text can continue, and whether it is complete.
    fn read(&self, text: &[u8]) -> (bool, bool) {
        let start = start::Config::new().anchored(Anchored::Yes);
        let mut state = self.0.start_state(&start).unwrap();
        for &byte in text {
            state = self.0.next_state(state, byte);
        }
        let whole = self.0.is_match_state(self.0.next_eoi_state(state));
        // A dense automaton may have states that cannot reach a match, so search from here.
        (whole || self.reaches(state), whole)
    }

    fn reaches(&self, from: regex_automata::util::primitives::StateID) -> bool {
        let (mut seen, mut open) = (std::collections::HashSet::new(), vec![from]);
        while let Some(state) = open.pop() {
            if self.0.is_dead_state(state) || !seen.insert(state) {
                continue;
            }
            if self.0.is_match_state(self.0.next_eoi_state(state)) {
                return true;
            }
            open.extend((0..=255).map(|byte| self.0.next_state(state, byte)));
        }
        false
    }
}

/// Walks through texts of `pattern`: each choice in `path` is one of the allowed tokens.
fn walk(matcher: &mut Matcher, pattern: &str, path: &[prop::sample::Index]) {
    let (tokens, oracle) = (tokens(), Oracle::new(pattern));
    let mut text: Vec<u8> = Vec::new();
    for choice in path {
        let mask = matcher.mask().unwrap();
        let whole = oracle.read(&text).1;
        let mut allowed = Vec::new();
        for (id, bytes) in tokens.iter().enumerate() {
            let expected = match id as u32 {
                END | OTHER_END => whole,
                _ => oracle.read(&[&text[..], bytes].concat()).0,
            };
            let shown = String::from_utf8_lossy(&text).into_owned();
            assert_eq!(
                mask.allows(id as u32),
                expected,
                "{pattern}: {shown:?} then {id}"
            );
            if expected {
                allowed.push(id as u32);
            }
        }
        let token = *choice.get(&allowed);
        assert!(matcher.accept(token).unwrap());
        if token == END || token == OTHER_END {
            let after = matcher.mask().unwrap();
            assert!((0..tokens.len() as u32).all(|id| after.allows(id) == (id < 2)));
            return;
        }
        text.extend(&tokens[token as usize]);
    }
}

const PATTERNS: &[&str] = &[
    "a",
    "[ab]+c?",
    "(a|ab)(c|bcd?)*",
    "-?[12]{1,3}",
    "(é| )*a",
    "\"[^\"\\\\]*\"",
    "a{0,5}b|[^a]2",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn masks_of_expressions_are_those_of_an_automaton(
        pattern in prop::sample::select(PATTERNS),
        path in prop::collection::vec(any::<prop::sample::Index>(), 1..9),
    ) {
        walk(&mut matcher(GrammarKind::Regex, pattern), pattern, &path);
    }

    #[test]
    fn masks_of_choices_are_those_of_an_automaton(
        choices in prop::collection::btree_set("[abc12 \"\\\\é-]{1,4}", 1..6),
        path in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
    ) {
        let choices: Vec<String> = choices.into_iter().collect();
        let pattern: Vec<String> = choices.iter().map(|c| regex_syntax::escape(c)).collect();
        let text = serde_json::to_string(&choices).unwrap();
        walk(&mut matcher(GrammarKind::Choice, &text), &pattern.join("|"), &path);
    }

    #[test]
    fn a_rollback_leaves_nothing_behind(
        pattern in prop::sample::select(PATTERNS),
        path in prop::collection::vec(any::<prop::sample::Index>(), 1..8),
        back in any::<prop::sample::Index>(),
    ) {
        let mut moved = matcher(GrammarKind::Regex, pattern);
        let (mut masks, mut taken) = (Vec::new(), Vec::new());
        for choice in &path {
            let mask = moved.mask().unwrap();
            let all = 0..tokens().len() as u32;
            let allowed: Vec<u32> = all.filter(|&t| mask.allows(t)).collect();
            masks.push(mask);
            let token = *choice.get(&allowed);
            prop_assert!(moved.accept(token).unwrap());
            taken.push(token);
        }
        let back = back.index(taken.len()) + 1;
        moved.rollback(back).unwrap();
        prop_assert_eq!(&moved.mask().unwrap(), &masks[taken.len() - back]);
        // Reading forward again gives the same masks.
        for at in taken.len() - back..taken.len() {
            prop_assert_eq!(&moved.mask().unwrap(), &masks[at]);
            prop_assert!(moved.accept(taken[at]).unwrap());
        }
    }

    #[test]
    fn no_text_is_more_than_an_error(
        kind in prop::sample::select(vec![
            GrammarKind::JsonSchema, GrammarKind::Regex, GrammarKind::Choice,
            GrammarKind::Syntax, GrammarKind::StructuralTag,
        ]),
        text in prop_oneof![
            ".{1,60}",
            "[a-z(){}\\[\\]|*+?^$\\\\/.:=\"<> \n%&~-]{1,60}",
            r#"(start|root|a|:|::=|"a"|/b/|\(|\)|\||\*|\{2,\}|%json \{\}| |\n){1,20}"#,
        ],
    ) {
        if let Ok(compiled) = compiler().compile(&Grammar::new(kind, text), LIMIT) {
            let mut matcher = compiled.matcher(vec![END]);
            if let Ok(mask) = matcher.mask() {
                prop_assert!((0..tokens().len() as u32).any(|t| mask.allows(t)));
            }
        }
    }
}

#[test]
fn a_token_that_may_not_follow_changes_nothing() {
    let mut matcher = matcher(GrammarKind::Regex, "ab");
    let before = matcher.mask().unwrap();
    let id = |text: &str| tokens().iter().position(|t| t == text.as_bytes()).unwrap() as u32;
    assert!(!matcher.accept(id("b")).unwrap());
    assert!(!matcher.accept(END).unwrap());
    assert_eq!(matcher.mask().unwrap(), before);
    assert!(matcher.accept(id("ab")).unwrap());
    assert!(matcher.accept(END).unwrap());
    matcher.rollback(2).unwrap();
    assert_eq!(matcher.mask().unwrap(), before);
}
