//! A server that plays a script over memory, under the runtime's virtual clock. The words are
//! defined in `tests/golden/bench/README.md`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use penstock_loadgen::{Columns, Connect, Request, Stamped, Stamps};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{Instant, sleep};

use crate::stage;

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Load {
    #[serde(default)]
    pub(crate) connect_ms: u64,
    pub(crate) max_concurrency: Option<usize>,
    pub(crate) connect_timeout_s: Option<f64>,
    pub(crate) idle_timeout_s: Option<f64>,
    pub(crate) stop_at: Option<f64>,
    pub(crate) requests: Vec<Scripted>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Scripted {
    pub(crate) due: f64,
    pub(crate) must_produce: u32,
    pub(crate) script: Vec<Step>,
}

/// A delay in milliseconds and the words to write after it.
pub(crate) type Step = Vec<serde_json::Value>;

/// State of the script's connections.
struct Play {
    load: Load,
    start: Instant,
    /// Second half of a half-written event, by request.
    rest: RefCell<HashMap<usize, Vec<u8>>>,
}

#[derive(Clone)]
struct Scene(Rc<Play>);

impl Scene {
    /// The word of a request that is due now and gets no connection.
    fn refusal(&self) -> Option<String> {
        let now = Instant::now() - self.0.start;
        let mut due = self.0.load.requests.iter().filter(|request| {
            Duration::from_secs_f64(request.due) == now && words(&request.script[0]).len() == 1
        });
        let word = due.find_map(|request| words(&request.script[0]).pop());
        word.filter(|word| word == "refuse" || word == "hang")
    }
}

impl Connect for Scene {
    type Stream = Stamped<DuplexStream>;

    async fn connect(&self, stamps: Rc<Stamps>) -> io::Result<Self::Stream> {
        match self.refusal().as_deref() {
            Some("hang") => std::future::pending().await,
            Some(_) => return Err(io::ErrorKind::ConnectionRefused.into()),
            None => sleep(Duration::from_millis(self.0.load.connect_ms)).await,
        }
        let (client, server) = duplex(1 << 20);
        tokio::task::spawn_local(serve(self.0.clone(), server));
        Ok(Stamped::new(client, stamps))
    }

    fn is_quiet(stream: &mut Self::Stream) -> bool {
        stage::is_quiet(stream)
    }
}

async fn serve(play: Rc<Play>, mut stream: DuplexStream) {
    while let Some(index) = read_request(&mut stream).await {
        for step in &play.load.requests[index].script {
            let delay = step[0].as_u64().unwrap();
            sleep(Duration::from_millis(delay)).await;
            let mut bytes = Vec::new();
            let mut open = true;
            for word in words(step) {
                open &= play.write(&mut bytes, index, &word);
            }
            if stream.write_all(&bytes).await.is_err() || !open {
                return;
            }
        }
    }
}

/// Reads one request; its body contains the index of the script.
async fn read_request(stream: &mut DuplexStream) -> Option<usize> {
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
        let text = String::from_utf8(bytes.clone()).unwrap();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.to_lowercase();
            let length = length.split_once("content-length: ").unwrap().1;
            let length: usize = length.lines().next().unwrap().parse().unwrap();
            if body.len() == length {
                let body: serde_json::Value = serde_json::from_str(body).unwrap();
                return Some(usize::try_from(body["script"].as_u64().unwrap()).unwrap());
            }
        }
    }
}

fn words(step: &Step) -> Vec<String> {
    let words = step[1..].iter();
    words
        .map(|word| word.as_str().unwrap().to_owned())
        .collect()
}

impl Play {
    /// Appends the data of a word. Returns false if the connection must be closed after it.
    fn write(&self, out: &mut Vec<u8>, index: usize, word: &str) -> bool {
        let (name, rest) = word.split_once(' ').unwrap_or((word, ""));
        match name {
            "head" => out.extend(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                  Transfer-Encoding: chunked\r\n\r\n",
            ),
            "half" => {
                let mut event = Vec::new();
                self.write(&mut event, index, rest);
                let end = event.split_off(event.len() / 2);
                self.rest.borrow_mut().insert(index, end);
                out.extend(event);
            }
            "rest" => out.extend(self.rest.borrow_mut().remove(&index).unwrap()),
            "comment" => chunk(out, ": keep-alive\n\n"),
            "done" => {
                chunk(out, "data: [DONE]\n\n");
                out.extend(b"0\r\n\r\n");
            }
            "end" => out.extend(b"0\r\n\r\n"),
            "cut" => return false,
            "status" => {
                let (status, body) = rest.split_once(' ').unwrap();
                let length = body.len();
                out.extend(
                    format!(
                        "HTTP/1.1 {status} x\r\nContent-Length: \
                        {length}\r\n\r\n{body}"
                    )
                    .bytes(),
                );
            }
            _ => chunk(out, &format!("data: {}\n\n", event(name, rest))),
        }
        true
    }
}

fn event(name: &str, rest: &str) -> String {
    let event = match name {
        "text" => {
            serde_json::json!({"choices": [{"index": 0, "text": rest, "finish_reason": null}]})
        }
        "finish" => {
            serde_json::json!({"choices": [{"index": 0, "text": "", "finish_reason": rest}]})
        }
        "error" => serde_json::json!({"error": {"message": rest, "type": "server_error"}}),
        "usage" => {
            let counts: Vec<u32> = rest
                .split(' ')
                .map(|count| count.parse().unwrap())
                .collect();
            serde_json::json!({"choices": [], "usage": {
                "prompt_tokens": counts[0], "completion_tokens": counts[1],
                "prompt_tokens_details": {"cached_tokens": counts[2]}}})
        }
        "data" => return rest.to_owned(),
        _ => panic!("{name}: no such word"),
    };
    event.to_string()
}

fn chunk(out: &mut Vec<u8>, data: &str) {
    out.extend(format!("{:x}\r\n{data}\r\n", data.len()).bytes());
}

/// Runs a load to its end.
pub(crate) fn play(load: &Load) -> Columns {
    let settings = serde_json::json!({
        "max_concurrency": load.max_concurrency,
        "connect_timeout_s": load.connect_timeout_s.unwrap_or(60.0),
        "idle_timeout_s": load.idle_timeout_s,
    });
    let requests = load
        .requests
        .iter()
        .enumerate()
        .map(|(index, request)| Request {
            due: request.due,
            must_produce: request.must_produce,
            body: format!("{{\"script\": {index}}}").into(),
        });
    stage::run(settings, requests.collect(), load.stop_at, || {
        Scene(Rc::new(Play {
            start: Instant::now(),
            rest: RefCell::default(),
            load: load.clone(),
        }))
    })
}
