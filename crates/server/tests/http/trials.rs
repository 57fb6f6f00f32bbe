//! Trials of grammars: a process of its own compiles what is not small, and is ended.

use std::time::{Duration, Instant};

use penstock_engine_client::testing::Script;
use penstock_wire::Finish;
use serde_json::{Value, json};

use crate::door::{Door, send};

/// Counts beyond what is small.
const LARGE: &str = "(a{1,60}b{1,60}){1,60}";

/// A door whose jobs `script`, a text for the shell, runs.
async fn door(script: &str) -> Door {
    let config = json!({"job_command": ["/bin/sh", "-c", script]});
    let answer = Script::new(|_| vec![send(&[97], Finish::Length)]);
    Door::open_with(config, answer).await
}

async fn asked(door: &Door, pattern: &str) -> (u16, Value) {
    let body = json!({"prompt": "x", "max_tokens": 1, "regex": pattern});
    let reply = door.complete(&body).await;
    match reply.status {
        200 => (200, Value::Null),
        _ => reply.error(),
    }
}

#[tokio::test]
async fn a_trial_that_is_ended_is_a_400_and_known_from_then_on() {
    // The limit ends it, as that of memory does.
    let door = door("ulimit -t 1; while :; do :; done").await;
    let (status, error) = asked(&door, LARGE).await;
    assert_eq!((status, &error["param"]), (400, &json!("regex")));
    assert_eq!(
        error["message"],
        "regex: it takes too much memory or time to compile."
    );
    let began = Instant::now();
    assert_eq!(asked(&door, LARGE).await.0, 400);
    assert!(
        began.elapsed() < Duration::from_millis(900),
        "it was tried again"
    );
    // What is small has no trial.
    assert_eq!(asked(&door, "[ab]+").await.0, 200);
}

#[tokio::test]
async fn a_trial_that_ends_lets_the_grammar_be_compiled_here() {
    let door = door("cat > /dev/null; test \"$0\" = grammar && echo ended").await;
    assert_eq!(asked(&door, LARGE).await.0, 200);
    let (status, error) = asked(&door, "(a{1,2000}").await;
    assert_eq!((status, &error["param"]), (400, &json!("regex")));
}
