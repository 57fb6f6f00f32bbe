//! The process: start-up log, signals, exit codes. The test binary runs itself as the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
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
    /// `None` once it is closed.
    log: Option<BufReader<std::process::ChildStderr>>,
}

impl Server {
    fn start(config: &Value) -> Self {
        // A shell that runs the tests in the background makes all processes ignore SIGINT.
        let mut command = Command::new("env");
        command
            .arg("--default-signal=INT,HUP,TERM")
            .arg(std::env::current_exe().expect("this binary"));
        Self::launch(command, config)
    }

    /// Starts `command`, which is this binary or runs it.
    fn launch(mut command: Command, config: &Value) -> Self {
        let mut child = command
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .process_group(0)
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
        let log = Some(BufReader::new(child.stderr.take().expect("a pipe")));
        Self { child, log }
    }

    /// Log lines up to the one that contains `wanted`.
    fn log_until(&mut self, wanted: &str) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        while !lines.last().is_some_and(|line| line.contains(wanted)) {
            let mut line = String::new();
            let log = self.log.as_mut().expect("an open log");
            let count = log.read_line(&mut line).expect("a readable log");
            assert!(count > 0, "the log ended before {wanted:?}: {lines:#?}");
            lines.push(line.trim_end().to_owned());
        }
        lines
    }

    fn signal(&self, name: &str) {
        kill(name, &self.child.id().to_string());
    }

    /// To its process group, which is its own.
    fn signal_group(&self, name: &str) {
        kill(name, &format!("-{}", self.child.id()));
    }

    /// The address in the ready line.
    fn address(&mut self) -> SocketAddr {
        let lines = self.log_until("listening on http://");
        let line = lines.last().expect("a line");
        let address = line.rsplit_once("http://").expect("an address").1;
        address.parse().expect("an address")
    }

    fn exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(300);
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

fn kill(name: &str, target: &str) {
    let mut kill = Command::new("kill");
    let status = kill.args(["-s", name, "--", target]).status();
    assert!(status.expect("kill").success());
}

/// The status of GET /health; `None` without an answer.
fn health(address: SocketAddr) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    let head = "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).ok()?;
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).expect("a time limit");
    let mut status = [0; 12];
    stream.read_exact(&mut status).ok()?;
    std::str::from_utf8(&status[9..]).ok()?.parse().ok()
}

fn wait_healthy(address: SocketAddr) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while health(address) != Some(200) {
        assert!(Instant::now() < deadline, "/health: {:?}", health(address));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a completion and leaves the answer to be read.
fn complete(address: SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(address).expect("a connection");
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
                content-length: 14\r\n\r\n{\"prompt\":\"x\"}";
    client.write_all(head.as_bytes()).expect("a sent request");
    client
}

/// Runs what blocks beside the fake engine.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("its result")
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
        "limits": {"max_body_bytes": 1000}, "drain_timeout_s": 30.0, "stall_timeout_s": 5.0,
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
        !lines.iter().any(|l| l.contains("tokenizer read ")),
        "{lines:#?}"
    );
    let numbers = lines
        .iter()
        .filter_map(|l| l.split_once("penstock.server: stage "));
    let numbers: Vec<_> = numbers.map(|(_, number)| number.to_owned()).collect();
    let expected: Vec<_> = (0..BURST).map(|i| format!("{i} 0.25 s (detail)")).collect();
    assert_eq!(numbers, expected, "all, in order");
    assert!(
        lines
            .last()
            .is_some_and(|l| l.contains(" penstock.server: ready ")
                && l.contains(" s (open, no key; context 8192 tokens, ")
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
    let (mut server, _client) = blocking(move || {
        let client = complete(server.address());
        (server, client)
    })
    .await;
    fake.wait_log(|log| log.adds.len() == 1).await;
    server.signal("INT");
    // As `timeout` does it: the same wish again, to the group.
    server.signal("TERM");
    server.log_until("draining: 1 requests open");
    std::thread::sleep(Duration::from_millis(400));
    assert!(
        server.child.try_wait().expect("a child").is_none(),
        "one wish ends no request"
    );
    server.signal("INT");
    assert_eq!(server.exit().code(), Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_without_a_reader_ends_nothing() {
    let dir = SocketDir::new("unread");
    let mut server = Server::start(&config(&dir, Value::Null));
    let socket = dir.0.join("engine.sock");
    let fake = FakeEngine::connect(&socket, Script::new(|_| Vec::new())).await;
    let (mut server, address) = blocking(move || {
        let address = server.address();
        (server, address)
    })
    .await;
    server.log = None;
    fake.kill();
    let _next = FakeEngine::connect(&socket, Script::new(|_| Vec::new())).await;
    blocking(move || wait_healthy(address)).await;
    server.signal("TERM");
    assert_eq!(server.exit().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_full_stops_nothing_and_says_later_what_it_lost() {
    let dir = SocketDir::new("full");
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let mut config = config(&dir, Value::Null);
    config["port"] = json!(address.port());
    let mut server = Server::start(&config);
    let stage = |i| Stage {
        name: format!("{i} {}", "x".repeat(100)),
        seconds: 0.0,
        detail: String::new(),
    };
    let script = Script {
        stages: (0..5000).map(stage).collect(),
        ..Script::new(|_| Vec::new())
    };
    let _fake = FakeEngine::connect(&dir.0.join("engine.sock"), script).await;
    blocking(move || wait_healthy(address)).await;
    server.log_until("lines of the log could not be written");
    server.signal("TERM");
    server.log_until("draining");
    assert_eq!(server.exit().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_to_the_process_group_drains_as_one_to_the_process() {
    for name in ["TERM", "INT", "HUP"] {
        let dir = SocketDir::new(&format!("group-{name}"));
        // The engine process that the API server starts runs until its file is gone; the test's
        // script sends the engine's messages.
        let runs = dir.0.join("runs");
        std::fs::write(&runs, "").expect("a file");
        let engine = "while [ -e \"$0\" ]; do sleep 0.05; done";
        let mut server = Server::start(&config(&dir, json!(["sh", "-c", engine, runs])));
        let script = Script::new(|_| tokens(&[97; 20], Duration::from_millis(20)));
        let mut fake = FakeEngine::connect(&dir.0.join("engine.sock"), script).await;
        let (mut server, mut client) = blocking(move || {
            let client = complete(server.address());
            (server, client)
        })
        .await;
        fake.wait_log(|log| log.adds.len() == 1).await;
        server.signal_group(name);
        let answer = blocking(move || {
            let mut answer = String::new();
            client.read_to_string(&mut answer).expect("an answer");
            answer
        })
        .await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{name}: {answer}");
        fake.wait_log(|log| log.shutdown).await;
        server.signal_group(name);
        std::fs::remove_file(&runs).expect("a file");
        server.exit();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hangup_that_was_ignored_at_the_start_stays_so() {
    let dir = SocketDir::new("nohup");
    let mut command = Command::new("sh");
    let binary = std::env::current_exe().expect("this binary");
    command
        .args(["-c", "trap '' HUP; exec \"$0\" \"$@\""])
        .arg(binary);
    let mut server = Server::launch(command, &config(&dir, Value::Null));
    let script = Script::new(|_| Vec::new());
    let _fake = FakeEngine::connect(&dir.0.join("engine.sock"), script).await;
    let (mut server, address) = blocking(move || {
        let address = server.address();
        (server, address)
    })
    .await;
    server.signal("HUP");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(health(address), Some(200));
    server.signal("TERM");
    assert_eq!(server.exit().code(), Some(0));
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
    let mut slow = config(&dir, json!(["sleep", "60"]));
    slow["log"] = json!({"level": "debug"});
    let mut server = Server::start(&slow);
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
