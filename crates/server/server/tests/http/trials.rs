//! Trials of grammars: a process of its own compiles what is not small, and is ended.

use std::sync::Arc;
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

/// A file in a new folder for scripts.
fn file(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("penstock-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder.join(name)
}

/// Another grammar that is not small.
fn large(number: usize) -> String {
    format!("{LARGE}{number}")
}

#[test]
fn grammars_that_wait_for_their_trial_take_no_thread() {
    // As many threads as trials at once, and one for bodies.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(3)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let config = json!({
            "job_command": ["/bin/sh", "-c", "cat > /dev/null; sleep 3; echo ended"],
            "max_queue": 40,
        });
        let answer = Script::new(|_| vec![send(&[97], Finish::Length)]);
        let door = Arc::new(Door::open_with(config, answer).await);
        let slow: Vec<_> = (0..8)
            .map(|number| {
                let door = door.clone();
                tokio::spawn(async move { asked(&door, &large(number)).await.0 })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let began = Instant::now();
        let long = "x".repeat(5000);
        let body = json!({"prompt": "x", "max_tokens": 1, "user": long});
        assert_eq!(door.complete(&body).await.status, 200);
        assert_eq!(asked(&door, "[ab]+").await.0, 200);
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(2), "{waited:?}");
        // Two at once for 3 s: the last ones would wait longer than they may.
        let mut statuses = Vec::new();
        for slow in slow {
            statuses.push(slow.await.expect("an answer"));
        }
        assert!(statuses.iter().all(|status| [200, 503].contains(status)));
        assert!(
            statuses.iter().filter(|status| **status == 200).count() >= 6,
            "{statuses:?}"
        );
    });
}

#[tokio::test]
async fn one_grammar_that_many_ask_for_at_once_has_one_trial() {
    let runs = file("runs");
    let _ = std::fs::remove_file(&runs);
    let script = format!(
        "cat > /dev/null; echo run >> '{}'; sleep 1; echo ended",
        runs.display()
    );
    let door = door(&script).await;
    let all = futures_util::future::join_all((0..4).map(|_| asked(&door, LARGE))).await;
    assert!(all.iter().all(|(status, _)| *status == 200), "{all:?}");
    let runs = std::fs::read_to_string(&runs).expect("the runs");
    assert_eq!(runs, "run\n");
}

/// Strict tools `alpha` and `beta` with schemas that are not small; `beta`'s also has `keyword`.
fn tools(keyword: &str) -> Value {
    let tool = |name: &str, strict: bool, schema: Value| {
        json!({"type": "function", "function":
            {"name": name, "strict": strict, "parameters": schema}})
    };
    let large = json!({"type": "object", "properties": {"x": {"multipleOf": 7}}});
    let mut other = large.clone();
    other[keyword] = json!({"x": ["y"]});
    json!([tool("alpha", true, large), tool("beta", true, other)])
}

#[tokio::test]
async fn strict_tools_have_one_trial_together_and_none_when_they_come_again() {
    let runs = file("tool-runs");
    let _ = std::fs::remove_file(&runs);
    let script = format!(
        "cat > /dev/null; echo run >> '{}'; echo ended",
        runs.display()
    );
    let door = door(&script).await;
    let trials = || std::fs::read_to_string(&runs).expect("the runs").len() / 4;
    let asked = async |keyword: &str| {
        let message = json!([{"role": "user", "content": "x"}]);
        let body = json!({"messages": message, "max_tokens": 1, "tools": tools(keyword)});
        let reply = door.chat(&body).await;
        match reply.status {
            200 => Value::Null,
            _ => reply.error().1["message"].clone(),
        }
    };
    for _ in 0..2 {
        assert_eq!(asked("default").await, Value::Null);
        assert_eq!(trials(), 1);
    }
    // All together do not compile: the schemas are tried and checked to name the tool.
    for _ in 0..2 {
        let message = "tools: the parameters of beta: dependentRequired at # is not supported.";
        assert_eq!(asked("dependentRequired").await, json!(message));
        assert_eq!(trials(), 3);
    }
}

#[tokio::test]
async fn a_process_that_cannot_start_says_nothing_of_the_grammar() {
    let program = file("program");
    let _ = std::fs::remove_file(&program);
    let command = json!([program, "-c", "cat > /dev/null; echo ended"]);
    let config = json!({"job_command": command, "trust_request_chat_template": true});
    let answer = Script::new(|_| vec![send(&[97], Finish::Length)]);
    let door = Door::open_with(config, answer).await;
    let (status, error) = asked(&door, LARGE).await;
    assert_eq!(
        (status, &error["code"]),
        (503, &json!("service_unavailable"))
    );
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "chat_template": "t"});
    let (status, error) = door.chat(&chat).await.error();
    assert_eq!(
        (status, &error["code"]),
        (503, &json!("service_unavailable"))
    );
    // Now it can.
    std::os::unix::fs::symlink("/bin/sh", &program).expect("a link");
    assert_eq!(asked(&door, LARGE).await.0, 200);
}

#[tokio::test]
async fn a_grammar_that_the_process_did_not_compile_is_tried_again() {
    let door = door("cat > /dev/null; echo not compiled").await;
    let (status, error) = asked(&door, LARGE).await;
    assert_eq!(status, 503, "{error}");
    assert_eq!(error["message"], "Too many grammars are being compiled.");
}
