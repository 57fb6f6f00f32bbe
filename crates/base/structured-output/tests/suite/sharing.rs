//! Sequences with the same grammar share its lexer without affecting each other.
use std::sync::mpsc;
use std::time::Duration;

use penstock_structured_output::{Compiled, Compiler, Matcher, Vocabulary};
use penstock_wire::{Grammar, GrammarKind};

const LIMIT: Duration = Duration::from_secs(60);

/// The end token, and all texts of `a` and `b` up to this length.
fn compiler(letters: usize) -> (Compiler, Vec<Vec<u8>>) {
    let mut tokens = vec![b"<end>".to_vec()];
    let mut last = vec![Vec::new()];
    for _ in 0..letters {
        let longer = |text: &Vec<u8>| [b'a', b'b'].map(|letter| [&text[..], &[letter]].concat());
        last = last.iter().flat_map(longer).collect();
        tokens.extend(last.clone());
    }
    let vocabulary = Vocabulary::of_tokens(tokens.clone(), vec![("<end>".into(), 0)]);
    (Compiler::new(vocabulary.unwrap()), tokens)
}

fn compiled(compiler: &Compiler, pattern: &str) -> Compiled {
    let grammar = Grammar::new(GrammarKind::Regex, pattern);
    compiler.compile(&grammar, LIMIT).unwrap()
}

/// Pseudo-random numbers below `below`.
fn numbers(below: usize) -> impl FnMut() -> usize {
    let mut state = 1u64;
    move || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    }
}

/// Reads an irregular text that is never complete. Returns the number of tokens accepted.
fn read(matcher: &mut Matcher, tokens: usize, most: usize) -> usize {
    let mut next = numbers(tokens - 1);
    let step = |_: &usize| matcher.mask().is_ok() && matcher.accept(1 + next() as u32) == Ok(true);
    (0..most).take_while(step).count()
}

#[test]
fn states_are_held_once_for_all_sequences_of_a_grammar() {
    let (compiler, tokens) = compiler(4);
    let compiled = compiled(&compiler, "[ab]*a[ab]{9}");
    let mut alive = Vec::new();
    let mut held = Vec::new();
    for _ in 0..32 {
        let mut matcher = compiled.matcher(vec![0]);
        assert_eq!(read(&mut matcher, tokens.len(), 200), 200);
        alive.push(matcher);
        held.push(compiler.lexer_bytes());
    }
    assert!(held[0] > 100_000);
    assert_eq!(held[31], held[0]);
}

#[test]
fn an_output_that_meets_a_bound_of_the_lexer_ends_alone() {
    // Only an irregular output visits enough states of this grammar to exceed the bound.
    let (compiler, tokens) = compiler(7);
    let compiled = compiled(&compiler, "[ab]*a[ab]{17}");
    let mut other = compiled.matcher(vec![0]);
    let ordinary = |matcher: &mut Matcher| {
        let mask = matcher.mask().unwrap();
        assert!((1..tokens.len() as u32).all(|id| mask.allows(id)));
        assert!(matcher.accept(1).unwrap());
        mask.allows(0)
    };
    for _ in 0..5 {
        assert!(!ordinary(&mut other));
    }
    let mut hostile = compiled.matcher(vec![0]);
    let came = read(&mut hostile, tokens.len(), 100_000);
    assert!(came < 100_000, "it met no bound");
    assert!(hostile.mask().is_err());
    // Complete from the 18th letter on.
    let whole: Vec<bool> = (5..30).map(|_| ordinary(&mut other)).collect();
    assert_eq!(whole.iter().position(|&whole| whole), Some(13));
    assert!(whole[13..].iter().all(|&whole| whole));
    // A later sequence also works.
    let mut later = compiled.matcher(vec![0]);
    assert!(!ordinary(&mut later));
}

#[test]
fn who_asks_for_a_grammar_that_is_being_compiled_waits_for_the_same_thread() {
    let (compiler, _) = compiler(2);
    let (send, answers) = mpsc::channel();
    // More than the maximum number of concurrent compilations.
    for _ in 0..40 {
        let send = send.clone();
        let grammar = Grammar::new(GrammarKind::Regex, "[ab]{2000}(a|b[ab]{900})");
        compiler.start(&grammar, move |outcome| {
            send.send(outcome.map(|compiled| compiled.matcher(vec![0])).is_ok())
                .unwrap();
        });
    }
    let answered = (0..40).map(|_| answers.recv_timeout(LIMIT).unwrap());
    assert!(answered.into_iter().all(|ok| ok));
}
