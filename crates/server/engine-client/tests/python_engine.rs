//! The engine's real end of the wire, `penstock.engine.frontend` in a Python process, under this
//! crate's supervision.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use penstock_engine_client::{Engine, EngineConfig, EngineState, Event, RestartBackoff};
use penstock_wire::{Finish, TokenRequest, WIRE_VERSION};

/// Echoes each prompt, one token a step, and obeys CANCEL and SHUTDOWN; token 666 makes it send
/// FATAL.
const ENGINE: &str = r#"
import os, sys, time
from array import array
from penstock.core import EngineStats, Request, StepOutputs
from penstock.engine.frontend import (
    Cancel, Connection, Fatal, Hello, Ready, Shutdown, Stage, Step,
)

connection = Connection(sys.argv[1])
connection.send(Hello(os.getpid()))
connection.send(Stage("model read", 0.5, "echo"))
connection.send(Ready(4096, 8, 512, 64, 16, 100, 1 << 20, 1000, (2,), bytes(32), "none", "none", 1))
open_requests, step, stopping = {}, 0, False
while not (stopping and not open_requests):
    rows = []
    for frame in connection.poll(0 if open_requests else 0.1):
        if isinstance(frame, Request):
            open_requests[frame.id] = list(frame.prompt)
        elif isinstance(frame, Cancel):
            rows += [(i, 3, []) for i in frame.ids if open_requests.pop(i, None) is not None]
        elif isinstance(frame, Shutdown):
            rows += [(i, 3, []) for i in open_requests]
            open_requests, stopping = {}, True
    for i, prompt in list(open_requests.items()):
        token = prompt.pop(0)
        if token == 666:
            connection.send(Fatal("the number of the beast"))
            connection.close()
            sys.exit(1)
        rows.append((i, 0 if prompt else 2, [token]))
        if not prompt:
            del open_requests[i]
    step += bool(rows)
    n = len(rows)
    connection.send(Step(step, EngineStats(len(open_requests), 0, 1, 100), n, 0.5, StepOutputs(
        array("Q", [row[0] for row in rows]), array("B", [row[1] for row in rows]),
        array("i", [-1] * n), array("I", bytes(4 * n)), array("I", bytes(4 * n)),
        array("H", [len(row[2]) for row in rows]),
        array("i", [token for row in rows for token in row[2]]))))
    time.sleep(0.001)
connection.close()
"#;

fn python_engine(test: &str) -> Option<EngineConfig> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let python = root.join(".venv/bin/python").display().to_string();
    let check = format!(
        "import sys; from penstock.engine.frontend import Hello; \
         sys.exit(Hello(1).wire_version != {WIRE_VERSION})"
    );
    let status = Command::new(&python).args(["-c", &check]).status();
    if !status.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED {test}: this version is not installed in .venv, run `make install`");
        return None;
    }
    let argv = [&python, "-c", ENGINE, "{socket}"]
        .map(str::to_owned)
        .to_vec();
    let restart_backoff = RestartBackoff {
        initial: Duration::from_millis(20),
        ..RestartBackoff::default()
    };
    Some(EngineConfig {
        argv: Some(argv),
        restart_backoff,
        ..EngineConfig::default()
    })
}

fn request(prompt: Vec<u32>) -> TokenRequest {
    TokenRequest {
        prompt,
        max_tokens: 1000,
        ..TokenRequest::default()
    }
}

async fn tokens_and_end(engine: &Engine, prompt: Vec<u32>) -> (Vec<u32>, Event) {
    let mut stream = engine.submit(request(prompt)).unwrap();
    let mut tokens = Vec::new();
    loop {
        let event = stream.next().await.unwrap();
        if let Event::Output(output) = &event {
            tokens.extend(&output.tokens);
        }
        if event.is_terminal() {
            return (tokens, event);
        }
    }
}

#[tokio::test]
async fn serves_is_killed_and_serves_again() {
    let Some(config) = python_engine("serves_is_killed_and_serves_again") else {
        return;
    };
    let engine = Engine::start(config).unwrap();
    assert_eq!(engine.wait_ready().await.unwrap().vocab_size, 1000);
    let prompt: Vec<u32> = (0..300).collect();
    let (tokens, end) = tokens_and_end(&engine, prompt.clone()).await;
    assert_eq!(tokens, prompt);
    assert!(matches!(end, Event::Output(output) if output.finish == Finish::Length));

    let mut open: Vec<_> = (0..8)
        .map(|_| engine.submit(request(vec![7; 100_000])).unwrap())
        .collect();
    for stream in &mut open {
        stream.next().await.unwrap();
    }
    let killed_at = Instant::now();
    let socket = engine.socket_path().to_str().unwrap();
    assert!(
        Command::new("sh")
            .args(["-c", &kill_command(socket)])
            .status()
            .unwrap()
            .success()
    );
    for stream in &mut open {
        while let Some(event) = stream.next().await {
            let Event::Failed { reason } = event else {
                continue;
            };
            assert_eq!(&*reason, "engine process was killed by signal 9 (SIGKILL)");
        }
    }
    assert!(
        killed_at.elapsed() < Duration::from_secs(20),
        "{:?}",
        killed_at.elapsed()
    );
    engine.wait_ready().await.unwrap();
    assert_eq!(tokens_and_end(&engine, vec![5, 6]).await.0, [5, 6]);
    engine.shutdown(Duration::from_secs(5)).await;
}

/// The socket's path is in the arguments of one process only, the engine.
fn kill_command(socket: &str) -> String {
    format!(
        "for p in /proc/[0-9]*; do \
         tr '\\0' '\\n' < $p/cmdline 2>/dev/null \
         | grep -qx '{socket}' && kill -9 ${{p#/proc/}}; done; :"
    )
}

#[tokio::test]
async fn fatal_is_the_cause_and_shutdown_is_quiet() {
    let Some(config) = python_engine("fatal_is_the_cause_and_shutdown_is_quiet") else {
        return;
    };
    let engine = Engine::start(config).unwrap();
    engine.wait_ready().await.unwrap();
    let (_, end) = tokens_and_end(&engine, vec![1, 666]).await;
    assert_eq!(
        end,
        Event::Failed {
            reason: "the number of the beast".into()
        }
    );
    engine.wait_ready().await.unwrap();

    let mut stream = engine.submit(request(vec![7; 100_000])).unwrap();
    stream.next().await.unwrap();
    let asked_at = Instant::now();
    engine.shutdown(Duration::from_secs(30)).await;
    assert!(
        asked_at.elapsed() < Duration::from_secs(20),
        "the engine exits on its own: {:?}",
        asked_at.elapsed()
    );
    let mut last = None;
    while let Some(event) = stream.next().await {
        last = Some(event);
    }
    assert!(matches!(last, Some(Event::Output(output)) if output.finish == Finish::Cancelled));
    assert!(matches!(engine.state(), EngineState::Stopped));
}
