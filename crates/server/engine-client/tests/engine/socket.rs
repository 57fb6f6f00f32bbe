use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use penstock_engine_client::testing::FakeEngine;
use penstock_engine_client::{Engine, EngineConfig, EngineError, EngineState, Event, SocketPlace};
use penstock_wire::{Finish, Output};

use crate::common::*;

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
        const OTHER_USER: libc::c_long = 65534;
        const KEEP: libc::c_long = -1;
        // SAFETY: the bare system call changes the ids of this thread only, which ends after the
        // connection is made.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, KEEP, OTHER_USER, KEEP) };
        (changed == 0).then(|| std::os::unix::net::UnixStream::connect(socket).unwrap())
    };
    std::thread::spawn(connect).join().unwrap()
}

#[tokio::test]
async fn the_socket_directory_of_the_user_stays() {
    let dir = TestDir::new();
    let config = EngineConfig {
        socket: SocketPlace::Directory(dir.0.clone()),
        ..config()
    };
    let engine = Engine::start(config.clone()).unwrap();
    assert_eq!(engine.socket_path(), dir.0.join("engine.sock"));
    assert!(matches!(
        Engine::start(config.clone()),
        Err(EngineError::InUse { .. })
    ));
    engine.shutdown(Duration::ZERO).await;
    assert!(dir.0.exists() && !engine.socket_path().exists());

    std::fs::write(engine.socket_path(), "notes").unwrap();
    assert!(matches!(
        Engine::start(config),
        Err(EngineError::NotASocket { .. })
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
        socket: SocketPlace::Directory(dir.0.clone()),
        ..config()
    };
    ready_engine(config, open_ended()).await;
}
