//! Hostile servers: a request always ends, and the split of the data does not affect the record.

use crate::stage;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use penstock_loadgen::{Columns, Connect, Request, Stamped, Stamps};
use proptest::prelude::*;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::sleep;

/// A server that writes its pieces a millisecond apart, regardless of the request.
struct Speaker {
    pieces: Vec<Vec<u8>>,
    /// Whether it then closes the connection or stays silent.
    closes: bool,
}

impl Connect for Speaker {
    type Stream = Stamped<DuplexStream>;

    async fn connect(&self, stamps: Rc<Stamps>) -> io::Result<Self::Stream> {
        let (client, mut server) = duplex(1 << 20);
        let (pieces, closes) = (self.pieces.clone(), self.closes);
        tokio::task::spawn_local(async move {
            let asked = server.read(&mut [0; 4096]).await;
            for piece in pieces {
                sleep(Duration::from_millis(1)).await;
                if server.write_all(&piece).await.is_err() {
                    break;
                }
            }
            if !closes {
                sleep(Duration::from_secs(100)).await;
            }
            asked
        });
        Ok(Stamped::new(client, stamps))
    }

    fn is_quiet(stream: &mut Self::Stream) -> bool {
        stage::is_quiet(stream)
    }
}

fn ask(pieces: Vec<Vec<u8>>, closes: bool) -> Columns {
    let request = Request {
        due: 0.0,
        must_produce: 2,
        body: "{}".into(),
    };
    stage::run(json!({"idle_timeout_s": 10}), vec![request], None, || {
        Speaker { pieces, closes }
    })
}

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";

fn chunked(events: &[&str]) -> Vec<u8> {
    let chunks = events
        .iter()
        .map(|event| format!("{:x}\r\n{event}\r\n", event.len()));
    let chunks: String = chunks.collect();
    format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n").into_bytes()
}

/// A valid answer with every feature of event streams.
fn good_answer() -> Vec<u8> {
    chunked(&[
        ": keep-alive\n\n",
        "data: {\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \"\"}}]}\n\n",
        "data:{\"choices\": [{\"delta\": {\"content\": \"a\\n\\\"é\"}}]}\r\n\r\n",
        "data: {\"choices\":\ndata: [{\"delta\": {\"content\": \"b\"}}]}\n\n",
        "data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"stop\"}]}\n\ndata: \
         {\"choices\": [], \"usage\": ",
        "{\"prompt_tokens\": 3, \"completion_tokens\": 2, \"prompt_tokens_details\": null}}\n\n",
        "data: [DONE]\n\n",
    ])
}

fn cut(bytes: &[u8], mut cuts: Vec<usize>) -> Vec<Vec<u8>> {
    cuts.iter_mut().for_each(|cut| *cut %= bytes.len() + 1);
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|ends| bytes[ends[0]..ends[1]].to_vec())
        .collect()
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(any::<usize>(), 0..20)
}

/// A damaged answer.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let damage = (
        any::<usize>(),
        0usize..40,
        prop::collection::vec(any::<u8>(), 0..40),
    );
    prop::collection::vec(damage, 1..6).prop_map(|all| {
        let mut bytes = good_answer();
        for (at, length, put) in all {
            let at = at % (bytes.len() + 1);
            let end = (at + length).min(bytes.len());
            bytes.splice(at..end, put);
        }
        bytes
    })
}

fn noise() -> impl Strategy<Value = Vec<u8>> {
    let after_head = prop::collection::vec(any::<u8>(), 0..400)
        .prop_map(|noise| [HEAD.as_bytes(), b"\r\n", &noise].concat());
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..400),
        after_head,
        damaged()
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..<_>::default() })]

    #[test]
    fn whatever_comes_the_request_ends(bytes in noise(), cuts in cuts(), closes in any::<bool>()) {
        let columns = ask(cut(&bytes, cuts), closes);
        prop_assert_eq!(columns.ended.len(), 1);
        prop_assert!(columns.ended[0] < 12.0, "{}", columns.ended[0]);
        let kind = columns.failure[0].as_str();
        let kinds =
            ["", "http_status", "error_event", "no_finish", "short", "malformed", "timeout"];
        prop_assert!(kinds.contains(&kind), "{}", kind);
        prop_assert_eq!(kind.is_empty(), columns.detail[0].is_empty());
        let whole = columns.status[0] == 200 && !columns.finish[0].is_empty();
        prop_assert!(!kind.is_empty() || whole);
    }

    #[test]
    fn a_good_answer_is_good_however_it_is_cut(cuts in cuts()) {
        let columns = ask(cut(&good_answer(), cuts), false);
        prop_assert_eq!((columns.failure[0].as_str(), columns.detail[0].as_str()), ("", ""));
        prop_assert_eq!(columns.text[0].as_str(), "a\n\"éb");
        prop_assert_eq!((columns.event_counts[0], columns.text_events[0]), (3, 2));
        prop_assert_eq!((columns.prompt_tokens[0], columns.completion_tokens[0]), (3, 2));
        prop_assert_eq!(columns.cached_tokens[0], -1);
    }
}

#[test]
fn a_good_answer_byte_by_byte() {
    let bytes = good_answer();
    let columns = ask(bytes.chunks(1).map(<[u8]>::to_vec).collect(), true);
    assert_eq!(
        (columns.failure[0].as_str(), columns.event_counts[0]),
        ("", 3)
    );
    // The outcome is known at the empty line after [DONE]; the last chunk is a line end of 2 bytes
    // and 5 more.
    let known = f64::from(u32::try_from(bytes.len() - 7).unwrap()) / 1000.0;
    assert!(
        (columns.ended[0] - known).abs() < 1e-9,
        "{} {known}",
        columns.ended[0]
    );
}

/// The failure and its detail for one answer.
fn outcome(answer: &str) -> (String, String) {
    let mut columns = ask(vec![answer.as_bytes().to_vec()], true);
    (columns.failure.remove(0), columns.detail.remove(0))
}

#[test]
fn what_is_no_stream_says_what_it_is() {
    let document = |status: &str, body: &str| {
        let length = body.len();
        outcome(&format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: \
             {length}\r\n\r\n{body}"
        ))
    };
    for ((failure, detail), (kind, said)) in [
        (
            document("200 OK", r#"{"error": {"message": "no such model"}}"#),
            ("error_event", "no such model"),
        ),
        (
            document("200 OK", r#"{"error": "busy"}"#),
            ("error_event", "busy"),
        ),
        (
            document("200 OK", r#"{"choices": []}"#),
            (
                "malformed",
                r#"one document instead of an event stream: {"choices": []}"#,
            ),
        ),
        (
            document("404 Not Found", "no\nroute"),
            ("http_status", "404 Not Found: no route"),
        ),
        (
            document("429 Too Many Requests", &"é".repeat(300)),
            (
                "http_status",
                &format!("429 Too Many Requests: {}", "é".repeat(200)),
            ),
        ),
        (
            outcome(""),
            ("no_finish", "the connection was closed before the answer"),
        ),
        (
            outcome(&format!("{HEAD}\r\n")),
            ("no_finish", "the stream ended without a finish_reason"),
        ),
        (
            outcome(&format!("{HEAD}Content-Length: 9\r\n\r\ndata")),
            (
                "no_finish",
                "the connection was closed in the middle of the stream",
            ),
        ),
    ] {
        assert_eq!((failure.as_str(), detail.as_str()), (kind, said));
    }
    assert_eq!(outcome("SSH-2.0-OpenSSH_9.6\r\n").0, "malformed");
    assert_eq!(
        outcome(&format!("{HEAD}Transfer-Encoding: chunked\r\n\r\nxyz\r\n")).0,
        "malformed"
    );
    assert_eq!(
        outcome(&format!("{HEAD}\r\ndata: \u{1}\n\n")).0,
        "malformed"
    );
}

#[test]
fn error_events_in_their_forms() {
    let stream = |event: &str| outcome(&format!("{HEAD}\r\n{event}\n\ndata: [DONE]\n\n"));
    for (event, message) in [
        (
            r#"data: {"error": {"message": "lost", "code": 500}}"#,
            "lost",
        ),
        (r#"data: {"error": "lost", "choices": []}"#, "lost"),
        (r#"data: {"error": {"code": 500}}"#, r#"{"code": 500}"#),
        ("event: error\ndata: out of memory", "out of memory"),
        (
            "event: error\ndata: {\"error\": {\"message\": \"lost\"}}",
            "lost",
        ),
        ("event: error\ndata: {\"message\": \"lost\"}", "lost"),
        (
            r#"data: {"choices": [{"text": "", "finish_reason": "error"}]}"#,
            "finish_reason error",
        ),
    ] {
        assert_eq!(
            stream(event),
            ("error_event".to_owned(), message.to_owned()),
            "{event}"
        );
    }
}

#[test]
fn bodies_of_every_framing() {
    let events = "data: {\"choices\": [{\"text\": \"a\"}], \"usage\": null, \"error\": null}\n\n\
         data: {\"choices\": [{\"text\": \"b\", \"finish_reason\": \"stop\"}], \
         \"usage\": {\"completion_tokens\": 2}}\n\n\
         data: [DONE]\n\n";
    let length = events.len();
    for answer in [
        format!("{HEAD}Content-Length: {length}\r\n\r\n{events}"),
        format!("{HEAD}Connection: close\r\n\r\n{events}"),
        format!("HTTP/1.0 200 OK\r\n\r\n{events}"),
        format!("HTTP/1.1 100 Continue\r\n\r\n{HEAD}\r\n{events}"),
        format!(
            "{HEAD}Transfer-Encoding: chunked\r\nTrailer: \
             x\r\n\r\n{length:x};ext=1\r\n{events}\r\n0\r\nx: y\r\n\r\n"
        ),
    ] {
        assert_eq!(outcome(&answer), (String::new(), String::new()), "{answer}");
    }
}

#[test]
fn an_event_without_end_is_cut_off() {
    let endless = vec![b'x'; 1 << 20];
    let mut pieces = vec![format!("{HEAD}\r\ndata: ").into_bytes()];
    pieces.extend(std::iter::repeat_n(endless, 20));
    let columns = ask(pieces, true);
    assert_eq!(columns.detail[0], "an event is larger than 16777216 bytes");
    assert_eq!(columns.failure[0], "malformed");
}

#[test]
fn what_is_thought_aloud_counts_as_text() {
    let columns = ask(
        vec![chunked(&[
            "data: {\"choices\": [{\"delta\": {\"reasoning_content\": \"hm\", \"content\": \
             null}}]}\n\n",
            "data: {\"choices\": [{\"delta\": {\"reasoning\": \" so\"}}]}\n\n",
            "data: {\"choices\": [{\"delta\": {\"content\": \" yes\"}, \"finish_reason\": \
             \"stop\"}]}\n\n",
            "data: [DONE]\n\n",
        ])],
        true,
    );
    assert_eq!(
        (columns.text[0].as_str(), columns.text_events[0]),
        ("hm so yes", 3)
    );
    assert_eq!(columns.failure[0], "");
}

#[test]
fn a_connection_left_open_after_done_is_given_up() {
    let mut answer = good_answer();
    answer.truncate(answer.len() - 5);
    let request = |due| Request {
        due,
        must_produce: 0,
        body: "{}".into(),
    };
    let speaker = || Speaker {
        pieces: vec![answer],
        closes: false,
    };
    let one_place = json!({"max_concurrency": 1});
    let columns = stage::run(one_place, vec![request(0.0), request(0.0)], None, speaker);
    assert_eq!(columns.failure, ["", ""]);
    assert_eq!(columns.ended, [0.001, 1.002]);
    assert_eq!(columns.connected, [0.0, 1.001]);
}
