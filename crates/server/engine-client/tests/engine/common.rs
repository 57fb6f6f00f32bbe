use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use penstock_engine_client::testing::{Action, FakeEngine, Script};
use penstock_engine_client::{
    Engine, EngineConfig, EngineState, Event, RequestStream, RestartBackoff,
};
use penstock_wire::{Output, TokenRequest};

pub(crate) const QUICK: Duration = Duration::from_millis(1);
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// A directory under the temporary one that is gone after the test.
pub(crate) struct TestDir(pub(crate) PathBuf);

impl TestDir {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "penstock-engine-client-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn shell(script: &str) -> Option<Vec<String>> {
    Some(["/bin/sh", "-c", script].map(str::to_owned).to_vec())
}

pub(crate) fn config() -> EngineConfig {
    let restart_backoff = RestartBackoff {
        initial: Duration::from_millis(20),
        ..RestartBackoff::default()
    };
    EngineConfig {
        restart_backoff,
        ..EngineConfig::default()
    }
}

pub(crate) fn request() -> TokenRequest {
    TokenRequest {
        prompt: vec![1, 2, 3],
        max_tokens: 8,
        ..TokenRequest::default()
    }
}

pub(crate) fn open_ended() -> Script {
    Script::new(|_| {
        vec![Action::Send(Output {
            tokens: vec![9],
            ..Output::default()
        })]
    })
}

pub(crate) async fn ready_engine(config: EngineConfig, script: Script) -> (Engine, FakeEngine) {
    let engine = Engine::start(config).unwrap();
    let fake = FakeEngine::connect(engine.socket_path(), script).await;
    engine.wait_ready().await.unwrap();
    (engine, fake)
}

pub(crate) async fn state_that(
    engine: &Engine,
    wanted: impl Fn(&EngineState) -> bool,
) -> EngineState {
    let mut states = engine.watch();
    let found = tokio::time::timeout(
        Duration::from_secs(300),
        states.wait_for(|state| wanted(state)),
    )
    .await;
    found.expect("the state comes").unwrap().clone()
}

pub(crate) async fn all_events(stream: &mut RequestStream) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        events.push(event);
    }
    events
}

pub(crate) fn token_ids(events: &[Event]) -> Vec<u32> {
    let ids = |event: &Event| match event {
        Event::Output(output) => output.tokens.clone(),
        Event::Failed { .. } => Vec::new(),
    };
    events.iter().flat_map(ids).collect()
}

pub(crate) fn failure(event: Option<&Event>) -> &str {
    match event {
        Some(Event::Failed { reason }) => reason,
        other => panic!("not a failure: {other:?}"),
    }
}

pub(crate) async fn first_pid(path: &str) -> String {
    loop {
        match std::fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text.lines().next().unwrap().to_owned(),
            _ => tokio::time::sleep(QUICK).await,
        }
    }
}

/// An unreaped zombie is dead.
pub(crate) fn is_alive(pid: &str) -> bool {
    let stat =
        std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    !state.is_empty() && !state.starts_with('Z')
}

pub(crate) async fn until(condition: impl Fn() -> bool) {
    let met = async {
        while !condition() {
            tokio::time::sleep(QUICK).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(300), met)
        .await
        .unwrap();
}
