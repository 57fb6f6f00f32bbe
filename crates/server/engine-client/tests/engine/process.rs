use std::path::PathBuf;
use std::time::{Duration, Instant};

use penstock_engine_client::testing::FakeEngine;
use penstock_engine_client::{Engine, EngineConfig, EngineError, EngineState, Event};

use crate::common::*;

#[tokio::test]
async fn a_killed_process_is_named_within_a_second_and_started_again() {
    let dir = TestDir::new();
    let pids = dir.file("pids");
    let argv = shell(&format!("echo $$ >> {pids}; exec sleep 100"));
    let (engine, _fake) = ready_engine(EngineConfig { argv, ..config() }, open_ended()).await;
    let mut open: Vec<_> = (0..32).map(|_| engine.submit(request()).unwrap()).collect();
    for stream in &mut open {
        stream.next().await.unwrap();
    }
    let killed_at = Instant::now();
    kill_9(&first_pid(&pids).await);
    for stream in &mut open {
        let events = all_events(stream).await;
        assert_eq!(
            failure(events.last()),
            "engine process was killed by signal 9 (SIGKILL)"
        );
    }
    assert!(
        killed_at.elapsed() < Duration::from_secs(20),
        "{:?}",
        killed_at.elapsed()
    );

    state_that(&engine, |state| matches!(state, EngineState::Starting)).await;
    let _next = FakeEngine::connect(engine.socket_path(), open_ended()).await;
    engine.wait_ready().await.unwrap();
    let first = engine.submit(request()).unwrap().next().await.unwrap();
    assert!(matches!(first, Event::Output(_)), "{first:?}");
    engine.shutdown(Duration::ZERO).await;
}

fn kill_9(pid: &str) {
    assert!(
        std::process::Command::new("/bin/sh")
            .args(["-c", &format!("kill -9 {pid}")])
            .status()
            .unwrap()
            .success()
    );
}

#[tokio::test]
async fn a_process_that_exits_before_it_was_ever_ready_is_a_failure() {
    let engine = Engine::start(EngineConfig {
        argv: shell("exit 3"),
        ..config()
    })
    .unwrap();
    let error = engine.wait_ready().await.unwrap_err().to_string();
    assert_eq!(
        error,
        "the engine failed to start: engine process exited with code 3"
    );

    let argv = Some(vec!["/nonexistent/engine".to_owned()]);
    let engine = Engine::start(EngineConfig { argv, ..config() }).unwrap();
    let error = engine.wait_ready().await.unwrap_err().to_string();
    assert!(
        error.contains("/nonexistent/engine") && error.contains("No such file"),
        "{error}"
    );
}

#[tokio::test]
async fn the_process_reads_its_input_and_its_command_line_has_none_of_it() {
    let dir = TestDir::new();
    let (seen, pids) = (dir.file("seen"), dir.file("pids"));
    let argv = shell(&format!("cat > {seen}; echo $$ > {pids}; exec sleep 100"));
    let input = "secret ".repeat(100_000);
    let config = EngineConfig {
        argv,
        input: input.clone(),
        ..config()
    };
    let _engine = Engine::start(config).unwrap();
    let pid = first_pid(&pids).await;
    assert_eq!(std::fs::read_to_string(seen).unwrap(), input);
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(!command.contains("secret"), "{command}");
}

#[tokio::test]
async fn restarts_back_off() {
    let dir = TestDir::new();
    let starts = dir.file("starts");
    // Killed by a signal, so that it is tried again though it was never ready.
    let argv = shell(&format!("echo >> {starts}; kill -9 $$"));
    let engine = Engine::start(EngineConfig { argv, ..config() }).unwrap();
    let mut waits = Vec::new();
    let mut states = engine.watch();
    while waits.len() < 4 {
        states.changed().await.unwrap();
        if let EngineState::Down { reason, retry_in } = &*states.borrow_and_update() {
            assert_eq!(reason, "engine process was killed by signal 9 (SIGKILL)");
            waits.push(retry_in.as_millis());
        }
    }
    assert_eq!(waits, [20, 40, 80, 160]);
    assert_eq!(std::fs::read_to_string(&starts).unwrap().lines().count(), 4);
}

#[tokio::test]
async fn a_start_that_takes_too_long_is_given_up() {
    let start_timeout = Duration::from_millis(50);
    let argv = shell("exec sleep 100");
    let engine = Engine::start(EngineConfig {
        argv,
        start_timeout,
        ..config()
    })
    .unwrap();
    let down = state_that(&engine, |state| matches!(state, EngineState::Down { .. })).await;
    assert!(down.to_string().contains("not ready within 50ms"), "{down}");
}

#[tokio::test]
async fn shutdown_kills_a_process_that_ignores_everything() {
    let dir = TestDir::new();
    let pids = dir.file("pids");
    let argv = shell(&format!(
        "trap '' TERM; echo $$ > {pids}; while :; do sleep 0.05; done"
    ));
    let engine = Engine::start(EngineConfig { argv, ..config() }).unwrap();
    let pid = first_pid(&pids).await;
    let asked_at = Instant::now();
    engine.shutdown(LONG).await;
    assert!(!is_alive(&pid));
    assert!(
        asked_at.elapsed() < Duration::from_secs(20),
        "{:?}",
        asked_at.elapsed()
    );
    assert!(!engine.socket_path().exists());
}

#[tokio::test]
async fn dropping_the_last_handle_kills_the_process() {
    let dir = TestDir::new();
    let pids = dir.file("pids");
    let argv = shell(&format!("echo $$ > {pids}; exec sleep 100"));
    let engine = Engine::start(EngineConfig { argv, ..config() }).unwrap();
    let socket = engine.socket_path().to_owned();
    let pid = first_pid(&pids).await;
    drop(engine);
    until(|| !is_alive(&pid) && !socket.exists()).await;
}

#[tokio::test]
async fn the_engine_dies_with_a_front_door_that_is_killed() {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", "process::front_door_process", "--ignored"];
    let mut front_door = std::process::Command::new(program)
        .args(arguments)
        .spawn()
        .unwrap();
    let pids = pid_file(front_door.id());
    let engine = first_pid(pids.to_str().unwrap()).await;
    assert!(is_alive(&engine));
    front_door.kill().unwrap();
    front_door.wait().unwrap();
    until(|| !is_alive(&engine)).await;
    std::fs::remove_file(pids).unwrap();

    let left = std::env::temp_dir().join(format!("penstock-{}-0", front_door.id()));
    // The next API server removes it; the one of a parallel test may be first.
    drop(Engine::start(config()).unwrap());
    assert!(!left.exists());
}

fn pid_file(front_door: u32) -> PathBuf {
    std::env::temp_dir().join(format!("penstock-engine-client-test-{front_door}.pids"))
}

/// The API server of the test above: its engine never looks at the socket, so only the kernel can
/// end it.
#[tokio::test]
#[ignore = "is a process that another test starts and kills"]
async fn front_door_process() {
    let pids = pid_file(std::process::id());
    let argv = shell(&format!("echo $$ > {}; exec sleep 100", pids.display()));
    let _engine = Engine::start(EngineConfig { argv, ..config() }).unwrap();
    tokio::time::sleep(LONG).await;
}

#[tokio::test]
async fn argv_must_name_a_program() {
    assert!(matches!(
        Engine::start(EngineConfig {
            argv: Some(Vec::new()),
            ..config()
        }),
        Err(EngineError::EmptyArgv)
    ));
}
