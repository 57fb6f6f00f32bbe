//! One engine from its socket to its end, against the scripted engine and real child processes.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use penstock_fleet::testing::{Action, FakeEngine, Script, reject, tokens};
use penstock_fleet::{
    Engine, EngineConfig, EngineState, Event, FleetError, RequestStream, RestartBackoff,
    SubmitError,
};
use penstock_protocol::frames::{Finish, Output, TokenRequest};

const QUICK: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(3600);

/// A directory under the temporary one that is gone after the test.
struct TestDir(PathBuf);

impl TestDir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "penstock-fleet-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn shell(script: &str) -> Option<Vec<String>> {
    Some(["/bin/sh", "-c", script].map(str::to_owned).to_vec())
}

fn config() -> EngineConfig {
    let restart_backoff = RestartBackoff {
        initial: Duration::from_millis(20),
        ..RestartBackoff::default()
    };
    EngineConfig {
        restart_backoff,
        ..EngineConfig::default()
    }
}

fn request() -> TokenRequest {
    TokenRequest {
        prompt: vec![1, 2, 3],
        max_tokens: 8,
        ..TokenRequest::default()
    }
}

fn open_ended() -> Script {
    Script::new(|_| {
        vec![Action::Send(Output {
            tokens: vec![9],
            ..Output::default()
        })]
    })
}

async fn ready_engine(config: EngineConfig, script: Script) -> (Engine, FakeEngine) {
    let engine = Engine::start(config).unwrap();
    let fake = FakeEngine::connect(engine.socket_path(), script).await;
    engine.wait_ready().await.unwrap();
    (engine, fake)
}

async fn state_that(engine: &Engine, wanted: impl Fn(&EngineState) -> bool) -> EngineState {
    let mut states = engine.watch();
    let found = tokio::time::timeout(
        Duration::from_secs(10),
        states.wait_for(|state| wanted(state)),
    )
    .await;
    found.expect("the state comes within 10 s").unwrap().clone()
}

async fn all_events(stream: &mut RequestStream) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        events.push(event);
    }
    events
}

fn token_ids(events: &[Event]) -> Vec<u32> {
    let ids = |event: &Event| match event {
        Event::Output(output) => output.tokens.clone(),
        Event::Failed { .. } => Vec::new(),
    };
    events.iter().flat_map(ids).collect()
}

fn failure(event: Option<&Event>) -> &str {
    match event {
        Some(Event::Failed { reason }) => reason,
        other => panic!("not a failure: {other:?}"),
    }
}

#[tokio::test]
async fn requests_stream_their_own_tokens_and_end_once() {
    let script = Script::new(|add| tokens(&add.request.prompt, QUICK));
    let (engine, fake) = ready_engine(config(), script).await;
    let streams = (1..=40u32).map(|i| {
        let prompt: Vec<u32> = (i * 100..i * 100 + 5).collect();
        (
            prompt.clone(),
            engine
                .submit(TokenRequest {
                    prompt,
                    ..request()
                })
                .unwrap(),
        )
    });
    for (prompt, mut stream) in streams.collect::<Vec<_>>() {
        let events = all_events(&mut stream).await;
        assert_eq!(token_ids(&events), prompt);
        assert_eq!(events.iter().filter(|event| event.is_terminal()).count(), 1);
        assert!(events.last().unwrap().is_terminal());
    }
    assert!(fake.log().cancels.is_empty());
    assert!(engine.stats().step >= 200);
}

#[tokio::test]
async fn the_handshake_carries_stages_and_limits() {
    let engine = Engine::start(config()).unwrap();
    assert!(matches!(engine.state(), EngineState::Starting { .. }));
    let refused = engine.submit(request()).unwrap_err();
    assert_eq!(
        refused,
        SubmitError::NotReady {
            reason: "the engine is starting".to_owned()
        }
    );
    assert_eq!(engine.healthy(), Err("the engine is starting".to_owned()));

    let script = open_ended();
    let limits = script.ready.clone();
    let _fake = FakeEngine::connect(engine.socket_path(), script).await;
    assert_eq!(*engine.wait_ready().await.unwrap(), limits);
    assert_eq!(engine.healthy(), Ok(()));
}

#[tokio::test]
async fn a_full_queue_is_a_rejected_output() {
    let (engine, _fake) = ready_engine(config(), Script::new(|_| reject())).await;
    let events = all_events(&mut engine.submit(request()).unwrap()).await;
    assert!(
        matches!(
            &events[..],
            [Event::Output(Output {
                finish: Finish::Rejected,
                ..
            })]
        ),
        "{events:?}"
    );
}

#[tokio::test]
async fn a_request_the_wire_cannot_carry_is_refused_at_once() {
    let (engine, _fake) = ready_engine(config(), open_ended()).await;
    let refused = engine
        .submit(TokenRequest {
            prompt: Vec::new(),
            ..request()
        })
        .unwrap_err();
    assert!(refused.to_string().contains("field prompt"), "{refused}");
}

#[tokio::test]
async fn dropping_a_stream_cancels_its_request_only() {
    let (engine, mut fake) = ready_engine(config(), open_ended()).await;
    let mut kept = engine.submit(request()).unwrap();
    let mut dropped = engine.submit(request()).unwrap();
    kept.next().await.unwrap();
    dropped.next().await.unwrap();
    let id = dropped.id();
    drop(dropped);
    let log = fake.wait_log(|log| !log.cancels.is_empty()).await;
    assert_eq!(log.cancels, [id]);
}

#[tokio::test]
async fn an_ended_stream_sends_no_cancel() {
    let (engine, mut fake) = ready_engine(config(), Script::new(|_| tokens(&[1], QUICK))).await;
    let mut ended = engine.submit(request()).unwrap();
    all_events(&mut ended).await;
    drop(ended);
    let unread = engine.submit(request()).unwrap();
    state_after_steps(&engine, 2).await;
    drop(unread);
    engine.submit(request()).unwrap();
    let log = fake.wait_log(|log| log.cancels.len() == 1).await;
    assert_eq!(
        log.cancels,
        [3],
        "only the third was open when it was dropped"
    );
}

async fn state_after_steps(engine: &Engine, steps: u64) {
    while engine.stats().step < steps {
        tokio::time::sleep(QUICK).await;
    }
}

#[tokio::test]
async fn another_wire_version_is_named_and_the_engine_not_started_again() {
    let engine = Engine::start(EngineConfig {
        argv: shell("exec sleep 100"),
        ..config()
    })
    .unwrap();
    let script = Script {
        wire_version: 7,
        ..open_ended()
    };
    let _fake = FakeEngine::connect(engine.socket_path(), script).await;
    let FleetError::NotReady { reason } = engine.wait_ready().await.unwrap_err() else {
        panic!("not NotReady")
    };
    assert!(
        reason.contains("wire version 7") && reason.contains("same Penstock release"),
        "{reason}"
    );
}

#[tokio::test]
async fn a_dead_engine_fails_every_request_at_once_and_the_next_one_serves() {
    let script = Script::new(|add| match add.request.seed {
        0 => vec![Action::Send(Output {
            tokens: vec![9],
            ..Output::default()
        })],
        _ => vec![Action::Die],
    });
    let (engine, _fake) = ready_engine(config(), script).await;
    let mut open: Vec<_> = (0..8).map(|_| engine.submit(request()).unwrap()).collect();
    for stream in &mut open {
        stream.next().await.unwrap();
    }
    open.push(
        engine
            .submit(TokenRequest {
                seed: 1,
                ..request()
            })
            .unwrap(),
    );
    for stream in &mut open {
        let events = all_events(stream).await;
        assert_eq!(failure(events.last()), "engine closed its connection");
    }
    let refused = engine.submit(request()).unwrap_err().to_string();
    assert!(
        refused.contains("engine closed its connection"),
        "{refused}"
    );

    let _next =
        FakeEngine::connect(engine.socket_path(), Script::new(|_| tokens(&[4], QUICK))).await;
    engine.wait_ready().await.unwrap();
    let events = all_events(&mut engine.submit(request()).unwrap()).await;
    assert_eq!(token_ids(&events), [4]);
}

#[tokio::test]
async fn a_fatal_message_is_the_cause() {
    let script = Script::new(|_| vec![Action::Fatal("out of memory".to_owned())]);
    let (engine, _fake) = ready_engine(config(), script).await;
    let events = all_events(&mut engine.submit(request()).unwrap()).await;
    assert_eq!(failure(events.last()), "engine failed: out of memory");
    assert!(matches!(engine.state(), EngineState::Down { .. }));
}

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
        killed_at.elapsed() < Duration::from_secs(1),
        "{:?}",
        killed_at.elapsed()
    );

    state_that(&engine, |state| {
        matches!(state, EngineState::Starting { .. })
    })
    .await;
    let _next = FakeEngine::connect(engine.socket_path(), open_ended()).await;
    engine.wait_ready().await.unwrap();
    let first = engine.submit(request()).unwrap().next().await.unwrap();
    assert!(matches!(first, Event::Output(_)), "{first:?}");
    engine.shutdown(Duration::ZERO).await;
}

async fn first_pid(path: &str) -> String {
    loop {
        match std::fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text.lines().next().unwrap().to_owned(),
            _ => tokio::time::sleep(QUICK).await,
        }
    }
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

/// A zombie that nobody reaps is dead.
fn is_alive(pid: &str) -> bool {
    let stat =
        std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    !state.is_empty() && !state.starts_with('Z')
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
async fn an_engine_without_progress_is_not_healthy() {
    let script = Script {
        heartbeat: LONG,
        ..Script::new(|_| tokens(&[1, 2], QUICK))
    };
    let stall_timeout = Duration::from_secs(5);
    let (engine, _fake) = ready_engine(
        EngineConfig {
            stall_timeout,
            ..config()
        },
        script,
    )
    .await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(4)).await;
    assert_eq!(engine.healthy(), Ok(()));
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(
        engine.healthy(),
        Err("the engine is stuck: no progress for 6 s".to_owned())
    );

    tokio::time::resume();
    all_events(&mut engine.submit(request()).unwrap()).await;
    assert_eq!(engine.healthy(), Ok(()), "a step is progress");
}

#[tokio::test]
async fn a_stalled_engine_keeps_its_requests_open() {
    let script = Script::new(|_| {
        vec![
            Action::Send(Output {
                tokens: vec![1],
                ..Output::default()
            }),
            Action::Stall,
        ]
    });
    let stall_timeout = Duration::from_millis(300);
    let (engine, _fake) = ready_engine(
        EngineConfig {
            stall_timeout,
            ..config()
        },
        script,
    )
    .await;
    let mut stream = engine.submit(request()).unwrap();
    stream.next().await.unwrap();
    assert!(
        tokio::time::timeout(Duration::from_millis(400), stream.next())
            .await
            .is_err()
    );
    assert!(engine.healthy().unwrap_err().contains("stuck"));
}

#[tokio::test]
async fn shutdown_ends_requests_as_cancelled_and_removes_the_socket() {
    let (engine, fake) = ready_engine(config(), open_ended()).await;
    let dir = engine.socket_path().parent().unwrap().to_owned();
    assert_eq!(mode(&dir), 0o700);
    assert_eq!(mode(engine.socket_path()), 0o600);

    let mut stream = engine.submit(request()).unwrap();
    stream.next().await.unwrap();
    engine.shutdown(Duration::from_secs(5)).await;
    let events = all_events(&mut stream).await;
    assert!(
        matches!(
            &events[..],
            [Event::Output(Output {
                finish: Finish::Cancelled,
                ..
            })]
        ),
        "{events:?}"
    );
    assert!(fake.log().shutdown);
    assert!(matches!(engine.state(), EngineState::Stopped));
    assert!(!dir.exists());
    assert_eq!(
        engine.submit(request()).unwrap_err().to_string(),
        "the engine is stopped"
    );
    engine.shutdown(LONG).await;
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
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
        asked_at.elapsed() >= Duration::from_secs(1),
        "SIGTERM comes first"
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

async fn until(condition: impl Fn() -> bool) {
    let met = async {
        while !condition() {
            tokio::time::sleep(QUICK).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), met)
        .await
        .unwrap();
}

#[tokio::test]
async fn the_engine_dies_with_a_front_door_that_is_killed() {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", "front_door_process", "--ignored"];
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
    let socket_dir = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let name = format!("penstock-{}-0", front_door.id());
    for left in socket_dir.filter(|entry| entry.file_name() == *name) {
        std::fs::remove_dir_all(left.path()).unwrap();
    }
}

fn pid_file(front_door: u32) -> PathBuf {
    std::env::temp_dir().join(format!("penstock-fleet-test-{front_door}.pids"))
}

/// The front door of the test above: its engine never looks at the socket, so only the kernel can end it.
#[tokio::test]
#[ignore = "is a process that another test starts and kills"]
async fn front_door_process() {
    let pids = pid_file(std::process::id());
    let argv = shell(&format!("echo $$ > {}; exec sleep 100", pids.display()));
    let _engine = Engine::start(EngineConfig { argv, ..config() }).unwrap();
    tokio::time::sleep(LONG).await;
}

#[tokio::test]
async fn connections_of_other_users_are_closed() {
    let engine = Engine::start(config()).unwrap();
    let socket = engine.socket_path().to_owned();
    let dir = socket.parent().unwrap();
    // As if modes were no protection.
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    let stranger = tokio::task::spawn_blocking(move || connect_as_nobody(&socket))
        .await
        .unwrap();
    let Some(mut stranger) = stranger else {
        return eprintln!(
            "SKIPPED connections_of_other_users_are_closed: only root can become another user"
        );
    };
    let read = tokio::task::spawn_blocking(move || std::io::Read::read(&mut stranger, &mut [0]));
    assert_eq!(read.await.unwrap().unwrap(), 0, "the end of the stream");
    let _fake = FakeEngine::connect(engine.socket_path(), open_ended()).await;
    engine.wait_ready().await.unwrap();
}

/// Connects from a thread that has another user id; `None` when this process may not change it.
fn connect_as_nobody(socket: &Path) -> Option<std::os::unix::net::UnixStream> {
    let socket = socket.to_owned();
    let connect = move || {
        const NOBODY: libc::c_long = 65534;
        const KEEP: libc::c_long = -1;
        // SAFETY: the bare system call changes the ids of this thread only, which ends after the connection is made.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, KEEP, NOBODY, KEEP) };
        (changed == 0).then(|| std::os::unix::net::UnixStream::connect(socket).unwrap())
    };
    std::thread::spawn(connect).join().unwrap()
}

#[tokio::test]
async fn the_socket_directory_of_the_user_stays() {
    let dir = TestDir::new();
    let config = EngineConfig {
        socket_dir: Some(dir.0.clone()),
        ..config()
    };
    let engine = Engine::start(config.clone()).unwrap();
    assert_eq!(engine.socket_path(), dir.0.join("engine.sock"));
    assert!(matches!(
        Engine::start(config.clone()),
        Err(FleetError::InUse { .. })
    ));
    engine.shutdown(Duration::ZERO).await;
    assert!(dir.0.exists() && !engine.socket_path().exists());

    std::fs::write(engine.socket_path(), "notes").unwrap();
    assert!(matches!(
        Engine::start(config),
        Err(FleetError::NotASocket { .. })
    ));
    assert_eq!(
        std::fs::read_to_string(engine.socket_path()).unwrap(),
        "notes"
    );
}

#[tokio::test]
async fn a_socket_left_by_a_dead_front_door_is_replaced() {
    let dir = TestDir::new();
    drop(std::os::unix::net::UnixListener::bind(dir.0.join("engine.sock")).unwrap());
    let config = EngineConfig {
        socket_dir: Some(dir.0.clone()),
        ..config()
    };
    ready_engine(config, open_ended()).await;
}

#[tokio::test]
async fn argv_must_name_a_program() {
    assert!(matches!(
        Engine::start(EngineConfig {
            argv: Some(Vec::new()),
            ..config()
        }),
        Err(FleetError::EmptyArgv)
    ));
}
