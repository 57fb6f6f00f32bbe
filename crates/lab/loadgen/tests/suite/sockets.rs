//! Real sockets and the handle: connections that are reused, closed, and never used twice for one
//! request; TLS; the end of a run.
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use penstock_loadgen::{Columns, LoadRun, Request, RunError};
use serde_json::json;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned, crypto::ring};

/// Upper bound for all waits; exceeded only by a hang.
const DEADLINE: Duration = Duration::from_secs(300);

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 75\r\n\r\n\
     data: {\"choices\": [{\"text\": \"a\", \"finish_reason\": \"stop\"}]}\n\ndata: [DONE]\n\n";

fn run(url: &str, more: &[(&str, serde_json::Value)]) -> LoadRun {
    let mut target = json!({"base_url": url, "path": "/v1/completions", "max_concurrency": null});
    for (name, value) in more {
        target[name] = value.clone();
    }
    LoadRun::new(&target.to_string()).unwrap()
}

fn request(due: f64, body: &str) -> Request {
    Request {
        due,
        must_produce: 0,
        body: body.to_owned().into(),
    }
}

fn ended(run: &LoadRun) -> Columns {
    run.start().unwrap();
    run.close();
    assert!(run.wait(DEADLINE).unwrap());
    run.take().unwrap()
}

/// The body of one request; `None` if the connection has ended.
fn read_body(stream: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.split_once("content-length: ").unwrap().1;
    let mut body = vec![0; length.lines().next().unwrap().parse().unwrap()];
    stream.read_exact(&mut body).ok()?;
    Some(String::from_utf8(body).unwrap())
}

/// A server with a thread per connection; `seen` receives (connection, body).
fn server(
    handle: impl Fn(usize, TcpStream, &Sender<(usize, String)>) + Send + Sync + 'static,
) -> (String, Receiver<(usize, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (seen, receiver) = channel();
    let handle = Arc::new(handle);
    thread::spawn(move || {
        for (index, stream) in listener.incoming().enumerate() {
            let (handle, seen) = (Arc::clone(&handle), seen.clone());
            thread::spawn(move || handle(index, stream.unwrap(), &seen));
        }
    });
    (url, receiver)
}

#[test]
fn a_kept_connection_carries_the_next_request() {
    let (url, seen) = server(|index, mut stream, seen| {
        while let Some(body) = read_body(&mut stream) {
            seen.send((index, body)).unwrap();
            stream.write_all(ANSWER.as_bytes()).unwrap();
        }
    });
    let run = run(&url, &[("max_concurrency", json!(1))]);
    let large = "x".repeat(3 << 20);
    run.add(vec![
        request(0.0, "1"),
        request(0.0, &large),
        request(0.2, "3"),
    ])
    .unwrap();
    let columns = ended(&run);
    assert_eq!(columns.failure, ["", "", ""]);
    assert_eq!(
        seen.try_iter().collect::<Vec<_>>(),
        [(0, "1".into()), (0, large), (0, "3".into())]
    );
    assert_eq!(
        columns.connected[2].to_bits(),
        columns.connected[0].to_bits()
    );
    assert!(columns.sent[0] >= columns.connected[0] && columns.sent[1] >= columns.ended[0]);
    assert!(columns.sent[2] >= 0.2 && columns.cpu_s > 0.0);
    let progress = run.progress();
    let counts = [
        &progress.added,
        &progress.sent,
        &progress.completed,
        &progress.events,
    ];
    assert_eq!(counts.map(|count| count.load(Relaxed)), [3; 4]);
    assert_eq!(
        [&progress.open, &progress.failed].map(|count| count.load(Relaxed)),
        [0; 2]
    );
}

#[test]
fn a_connection_that_the_server_closed_is_replaced() {
    let (url, seen) = server(|index, mut stream, seen| {
        let body = read_body(&mut stream).unwrap();
        seen.send((index, body)).unwrap();
        stream.write_all(ANSWER.as_bytes()).unwrap();
    });
    let run = run(&url, &[]);
    run.add(vec![request(0.0, "1"), request(0.3, "2")]).unwrap();
    assert_eq!(ended(&run).failure, ["", ""]);
    assert_eq!(
        seen.try_iter().collect::<Vec<_>>(),
        [(0, "1".into()), (1, "2".into())]
    );
}

/// Like a server that closes an idle connection while the next request is in transit.
#[test]
fn a_kept_connection_that_ends_without_a_byte_is_replaced() {
    let (url, seen) = server(|index, mut stream, seen| {
        let body = read_body(&mut stream).unwrap();
        seen.send((index, body)).unwrap();
        stream.write_all(ANSWER.as_bytes()).unwrap();
        if let Some(body) = read_body(&mut stream) {
            seen.send((index, body)).unwrap();
        }
    });
    let run = run(&url, &[("max_concurrency", json!(1))]);
    let due = [0.0, 0.3, 0.6].map(|due| request(due, &due.to_string()));
    run.add(due.into()).unwrap();
    let columns = ended(&run);
    assert_eq!(columns.failure, ["", "", ""], "{:?}", columns.detail);
    assert_eq!(columns.resent, [false, true, true]);
    assert!(columns.sent[1] >= columns.connected[1] && columns.connected[1] >= 0.3);
    assert_eq!(run.progress().sent.load(Relaxed), 3);
    let seen: Vec<_> = seen.try_iter().collect();
    let asked = [(0, "0"), (0, "0.3"), (1, "0.3"), (1, "0.6"), (2, "0.6")];
    assert_eq!(seen, asked.map(|(index, body)| (index, body.to_owned())));
}

/// A failure on a new connection too is the server's failure; a started answer is never retried.
#[test]
fn a_request_is_sent_at_most_twice() {
    for (said, sent, detail) in [
        ("", 2, "the connection was closed before the answer"),
        (
            "HTTP/1.1 200 ",
            1,
            "the connection was closed before the answer",
        ),
    ] {
        let (url, seen) = server(move |index, mut stream, seen| {
            let body = read_body(&mut stream).unwrap();
            seen.send((index, body)).unwrap();
            if index == 0 {
                stream.write_all(ANSWER.as_bytes()).unwrap();
                seen.send((index, read_body(&mut stream).unwrap())).unwrap();
                stream.write_all(said.as_bytes()).unwrap();
            }
        });
        let run = run(&url, &[]);
        run.add(vec![request(0.0, "1"), request(0.3, "2")]).unwrap();
        let columns = ended(&run);
        assert_eq!(columns.failure, ["", "no_finish"]);
        assert_eq!(columns.detail[1], detail);
        assert_eq!(columns.resent[1], sent == 2);
        let twos = seen.try_iter().filter(|(_, body)| body == "2");
        assert_eq!(twos.count(), sent, "{said:?}");
    }
}

#[test]
fn nobody_listens_and_no_such_name() {
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for url in [
        format!("http://{free}"),
        "http://no-such-host.invalid:1".to_owned(),
    ] {
        let run = run(&url, &[]);
        run.add(vec![request(0.0, "{}")]).unwrap();
        let columns = ended(&run);
        assert_eq!(columns.failure, ["connect"], "{url}");
        assert!(columns.sent[0].is_nan() && !columns.ended[0].is_nan());
    }
}

#[test]
fn a_name_is_resolved() {
    let (url, _seen) = server(|_, mut stream, _| {
        read_body(&mut stream).unwrap();
        stream.write_all(ANSWER.as_bytes()).unwrap();
    });
    let run = run(&url.replace("127.0.0.1", "localhost"), &[]);
    run.add(vec![request(0.0, "{}"), request(0.1, "{}")])
        .unwrap();
    assert_eq!(ended(&run).failure, ["", ""]);
}

#[test]
fn requests_are_added_while_the_load_runs() {
    let (url, _seen) = server(|_, mut stream, _| {
        while read_body(&mut stream).is_some() {
            stream.write_all(ANSWER.as_bytes()).unwrap();
        }
    });
    let run = run(&url, &[]);
    run.start().unwrap();
    assert!(!run.wait(Duration::from_millis(1)).unwrap());
    run.add(vec![request(0.0, "{}")]).unwrap();
    while run.progress().completed.load(Relaxed) == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    run.add(vec![request(0.0, "{}")]).unwrap();
    run.close();
    assert!(run.wait(DEADLINE).unwrap());
    assert_eq!(run.take().unwrap().failure, ["", ""]);
}

#[test]
fn dropping_a_run_closes_its_connections() {
    let (url, seen) = server(|index, mut stream, seen| {
        let body = read_body(&mut stream).unwrap();
        seen.send((index, body)).unwrap();
        // Until the client disconnects.
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
        seen.send((index, "gone".to_owned())).unwrap();
    });
    let run = run(&url, &[]);
    run.add(vec![request(0.0, "{}"), request(1e6, "{}")])
        .unwrap();
    run.start().unwrap();
    assert_eq!(seen.recv_timeout(DEADLINE).unwrap().1, "{}");
    drop(run);
    assert_eq!(seen.recv_timeout(DEADLINE).unwrap().1, "gone");
}

#[test]
fn a_stopped_run_tells_what_it_has() {
    let (url, seen) = server(|index, mut stream, seen| {
        let body = read_body(&mut stream).unwrap();
        seen.send((index, body)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    });
    let run = run(&url, &[]);
    run.add(vec![request(0.0, "{}"), request(1e6, "{}")])
        .unwrap();
    run.start().unwrap();
    seen.recv_timeout(DEADLINE).unwrap();
    run.stop();
    assert!(run.wait(DEADLINE).unwrap());
    assert_eq!(run.take().unwrap().failure, ["interrupted", "unsent"]);
}

#[test]
fn wrong_calls_are_refused() {
    let run = run("http://127.0.0.1:1", &[]);
    let state = |result: Result<(), RunError>| match result.unwrap_err() {
        RunError::State(problem) => problem,
        other => panic!("{other}"),
    };
    assert_eq!(state(run.wait(DEADLINE).map(drop)), "has not been started");
    assert_eq!(state(run.take().map(drop)), "has not ended");
    for wrong in [
        vec![-1.0],
        vec![f64::NAN],
        vec![1.0, 0.5],
        vec![f64::INFINITY],
    ] {
        let wrong = wrong.into_iter().map(|due| request(due, "{}")).collect();
        assert!(matches!(run.add(wrong), Err(RunError::Due { .. })));
    }
    assert_eq!(ended(&run).failure, [""; 0]);
    assert_eq!(
        state(run.take().map(drop)),
        "has given its records away already"
    );
    assert_eq!(state(run.start()), "has been started before");
    assert_eq!(state(run.add(vec![])), "is closed; nothing can be added");
}

/// An https server with its own certificate for localhost: its URL and the certificate in PEM.
fn https_server() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    let config = Arc::new(config);
    let (url, _seen) = server(move |_, stream, _| {
        let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        let mut stream = StreamOwned::new(connection, stream);
        while read_body(&mut stream).is_some() {
            stream.write_all(ANSWER.as_bytes()).unwrap();
            stream.flush().unwrap();
        }
    });
    (
        url.replace("http://127.0.0.1", "https://localhost"),
        made.cert.pem(),
    )
}

#[test]
fn https_without_verification() {
    let (url, _) = https_server();
    let run = run(&url, &[("insecure", json!(true))]);
    run.add(vec![request(0.0, "{}"), request(0.3, "{}")])
        .unwrap();
    let columns = ended(&run);
    assert_eq!(columns.failure, ["", ""], "{:?}", columns.detail);
    assert_eq!(
        columns.connected[0].to_bits(),
        columns.connected[1].to_bits()
    );
}

/// The platform's authorities are loaded from files named by environment variables, so each case
/// needs its own process.
#[test]
fn https_with_verification() {
    let (url, certificate) = https_server();
    let (_, other) = https_server();
    let directory = std::env::temp_dir().join(format!("penstock-loadgen-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    for (name, authority, outcome) in [("own", &certificate, ""), ("other", &other, "connect")] {
        let path = directory.join(name);
        std::fs::write(&path, authority).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "https_in_a_process"])
            .env("SSL_CERT_FILE", &path)
            .env("LOADGEN_TEST_URL", &url)
            .env("LOADGEN_TEST_OUTCOME", outcome)
            .output()
            .unwrap();
        assert!(
            child.status.success(),
            "{}",
            String::from_utf8_lossy(&child.stdout)
        );
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
#[ignore = "run by https_with_verification"]
fn https_in_a_process() {
    let run = run(&std::env::var("LOADGEN_TEST_URL").unwrap(), &[]);
    run.add(vec![request(0.0, "{}")]).unwrap();
    let columns = ended(&run);
    let outcome = std::env::var("LOADGEN_TEST_OUTCOME").unwrap();
    assert_eq!(columns.failure, [outcome], "{:?}", columns.detail);
    assert!(columns.detail[0].is_empty() || columns.detail[0].contains("certificate"));
}
