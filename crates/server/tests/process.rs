//! The process: start-up log, signals, exit codes. The test binary runs itself as the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use penstock_engine_client::testing::{FakeEngine, Script, tokens};
use penstock_server::run;
use penstock_wire::Stage;
use serde_json::{Value, json};

/// Not a test: the server, when this binary is started by [`Server::start`].
#[test]
#[ignore = "is the child of the other tests"]
fn child() {
    let mut config = String::new();
    std::io::stdin()
        .read_to_string(&mut config)
        .expect("a configuration");
    match run(&config) {
        Ok(code) => std::process::exit(code),
        Err(error) => {
            eprintln!("refused: {error}");
            std::process::exit(9);
        }
    }
}

struct Server {
    child: Child,
    log: BufReader<std::process::ChildStderr>,
}

impl Server {
    fn start(config: &Value) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a child");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin
            .write_all(config.to_string().as_bytes())
            .expect("a written configuration");
        drop(stdin);
        let log = BufReader::new(child.stderr.take().expect("a pipe"));
        Self { child, log }
    }

    /// Log lines up to the one that contains `wanted`.
    fn log_until(&mut self, wanted: &str) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        while !lines.last().is_some_and(|line| line.contains(wanted)) {
            let mut line = String::new();
            let count = self.log.read_line(&mut line).expect("a readable log");
            assert!(count > 0, "the log ended before {wanted:?}: {lines:#?}");
            lines.push(line.trim_end().to_owned());
        }
        lines
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &pid])
                .status()
                .expect("kill")
                .success()
        );
    }

    fn exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A private directory that goes away with the test.
struct SocketDir(PathBuf);

impl SocketDir {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("penstock-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }
}

impl Drop for SocketDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn config(dir: &SocketDir, argv: Value) -> Value {
    json!({
        "host": "127.0.0.1", "port": 0, "served_model_names": ["tiny"],
        "model_path": concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tiny-model"),
        "chat_template": null, "api_keys": [],
        "generation_defaults": {}, "engine": {"argv": argv, "socket_dir": dir.0}, "max_queue": 4,
        "max_body_bytes": 1000, "drain_timeout_s": 30.0, "stall_timeout_s": 5.0,
        "max_model_len": null, "version": "1",
    })
}

/// Stages that an engine ends at the same moment.
const BURST: usize = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_with_stages_drains_on_sigterm_and_exits_0() {
    let dir = SocketDir::new("drain");
    let mut server = Server::start(&config(&dir, Value::Null));
    let stage = |i| Stage {
        name: format!("stage {i}"),
        seconds: 0.25,
        detail: "detail".to_owned(),
    };
    let script = Script {
        stages: (0..BURST).map(stage).collect(),
        ..Script::new(|_| tokens(&[97], Duration::ZERO))
    };
    let mut fake = FakeEngine::connect(&dir.0.join("engine.sock"), script).await;
    let (mut server, lines) = tokio::task::spawn_blocking(move || {
        let lines = server.log_until("listening on http://127.0.0.1:");
        (server, lines)
    })
    .await
    .expect("a log");
    assert!(
        lines
            .iter()
            .any(|l| l.starts_with("penstock: tokenizer read ")),
        "{lines:#?}"
    );
    let stages = lines.iter().filter(|l| l.starts_with("penstock: stage "));
    let numbers = stages.map(|l| l["penstock: stage ".len()..].to_owned());
    let expected: Vec<_> = (0..BURST).map(|i| format!("{i} 0.25 s (detail)")).collect();
    assert_eq!(numbers.collect::<Vec<_>>(), expected, "all, in order");
    assert!(
        lines
            .last()
            .is_some_and(|l| l.starts_with("penstock: ready ")
                && l.contains(" s (fake on none, 1 threads; context 8192 tokens, ")
                && !l.ends_with(":0")),
        "{lines:#?}"
    );
    server.signal("TERM");
    fake.wait_log(|log| log.shutdown).await;
    drop(fake);
    assert_eq!(server.exit().code(), Some(0));
    assert!(!dir.0.join("engine.sock").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_open_requests_at_once() {
    let dir = SocketDir::new("cut");
    let mut server = Server::start(&config(&dir, Value::Null));
    // Never answers: the drain would take its 30 s.
    let mut fake =
        FakeEngine::connect(&dir.0.join("engine.sock"), Script::new(|_| Vec::new())).await;
    let (mut server, line) = tokio::task::spawn_blocking(move || {
        let line = server
            .log_until("listening on http://")
            .pop()
            .expect("a line");
        (server, line)
    })
    .await
    .expect("a log");
    let address = line
        .rsplit_once("http://")
        .expect("an address")
        .1
        .to_owned();
    let mut client = std::net::TcpStream::connect(address).expect("a connection");
    let body = r#"{"prompt":"x"}"#;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 14\r\n\r\n";
    client
        .write_all(format!("{head}{body}").as_bytes())
        .expect("a sent request");
    fake.wait_log(|log| log.adds.len() == 1).await;
    server.signal("INT");
    server.log_until("draining: 1 requests open");
    server.signal("INT");
    assert_eq!(server.exit().code(), Some(1));
}

#[test]
fn an_engine_that_cannot_start_is_said_and_exits_1() {
    let dir = SocketDir::new("fatal");
    let mut server = Server::start(&config(&dir, json!(["sh", "-c", "exit 3", "{socket}"])));
    let line = server.log_until("error: ").pop().expect("a line");
    assert!(line.contains("exited with code 3"), "{line}");
    assert_eq!(server.exit().code(), Some(1));
}

#[test]
fn a_signal_while_starting_exits_0() {
    let dir = SocketDir::new("early");
    let mut server = Server::start(&config(&dir, json!(["sleep", "60"])));
    server.log_until("tokenizer read");
    server.signal("TERM");
    assert_eq!(server.exit().code(), Some(0));
}

#[test]
fn a_wrong_configuration_names_the_field() {
    let dir = SocketDir::new("config");
    for (field, value) in [
        ("drain_timeout_s", json!(-1)),
        ("served_model_names", json!([])),
        ("surprise", json!(1)),
    ] {
        let mut wrong = config(&dir, Value::Null);
        wrong[field] = value;
        let mut server = Server::start(&wrong);
        let line = server.log_until("refused: ").pop().expect("a line");
        assert!(line.contains(field), "{line}");
        assert_eq!(server.exit().code(), Some(9));
    }
}
