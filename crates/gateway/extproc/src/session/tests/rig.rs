//! A fake picker that notes what it is called with, and helpers to run streams of messages.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{HeaderValue as HttpValue, header};
use tokio::runtime::Builder;

use super::super::*;
use crate::messages::{
    CommonResponse, HeaderList, HeaderValue, Kind, Mutation, PartResponse, ProtocolConfiguration,
};
use crate::picker::{AnswerHead, Change, Excess, Head, Room};
use crate::replies::{CHUNK, ENDPOINT};

/// Picks two endpoints for a body, unless it says `no`. A body `rename` becomes `renamed`.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Vec<String>>>);

struct FakeCall {
    notes: Fake,
    body: Vec<u8>,
    ended: bool,
}

impl Fake {
    fn note(&self, note: impl Into<String>) {
        self.0.lock().unwrap().push(note.into());
    }

    pub(super) fn notes(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

pub(super) fn no(status: u16) -> Refusal {
    let retry = (header::RETRY_AFTER, HttpValue::from(1));
    Refusal {
        status,
        headers: vec![retry],
        body: "no".into(),
        reason: "shed",
    }
}

/// Memory reservation with a limit of a tenth of the largest message.
struct FakeRoom;

impl Room for FakeRoom {
    fn resize(&mut self, bytes: usize) -> bool {
        bytes <= 100_000
    }
}

impl Picker for Fake {
    type Call = FakeCall;
    type Room = FakeRoom;

    fn room(&self) -> FakeRoom {
        FakeRoom
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn begin(&self, head: Head) -> Result<FakeCall, Refusal> {
        let subset = head
            .subset
            .map_or(String::new(), |all| format!(" of {}", all.join(" ")));
        self.note(format!("{} {}{subset}", head.method, head.path));
        if head.headers.contains_key("refuse") {
            return Err(no(429));
        }
        Ok(FakeCall {
            notes: self.clone(),
            body: Vec::new(),
            ended: false,
        })
    }

    fn ready(&self) -> bool {
        true
    }
}

impl Call for FakeCall {
    fn take(&mut self, bytes: Bytes) -> Result<(), Refusal> {
        self.body.extend_from_slice(&bytes);
        match self.body.len() > 1_000_000 {
            true => Err(no(413)),
            false => Ok(()),
        }
    }

    fn exceeds(&self, excess: Excess) -> Refusal {
        match excess {
            Excess::Room => no(503),
            Excess::Time => no(408),
        }
    }

    async fn pick(&mut self, seen: BodyVisibility) -> Result<Picked, Refusal> {
        self.notes
            .note(format!("pick {seen:?} {}", self.body.len()));
        if self.body == b"no" {
            return Err(no(503));
        }
        let is_rewritten = self.body == b"rename";
        Ok(Picked {
            endpoints: vec!["10.0.0.1:80".to_owned(), "10.0.0.2:80".to_owned()],
            body: match is_rewritten {
                true => "renamed".into(),
                false => std::mem::take(&mut self.body).into(),
            },
            is_rewritten,
            change: Change::default(),
        })
    }

    fn answered(&mut self, head: &AnswerHead) -> Change {
        let by = head.served.as_deref().unwrap_or("?");
        self.notes.note(format!("answered {} by {by}", head.status));
        Change::default()
    }

    /// Holds back the bytes from a `|` on, until the end.
    fn pass(&mut self, bytes: Bytes) -> Bytes {
        self.notes.note(format!("passed {}", bytes.len()));
        let held = bytes.iter().position(|byte| *byte == b'|');
        self.body = held.map_or(Vec::new(), |at| bytes[at..].to_vec());
        bytes.slice(..held.unwrap_or(bytes.len()))
    }

    fn end(&mut self) -> Bytes {
        self.ended = true;
        self.notes.note("end");
        std::mem::take(&mut self.body).into()
    }
}

impl Drop for FakeCall {
    fn drop(&mut self) {
        if !self.ended {
            self.notes.note("left");
        }
    }
}

pub(super) fn list(pairs: &[(&str, &str)]) -> Option<HeaderList> {
    let header = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        value: String::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    };
    Some(HeaderList {
        headers: pairs.iter().map(header).collect(),
    })
}

pub(super) fn request_head(end_of_stream: bool, more: &[(&str, &str)]) -> Part {
    let all = [&[(":method", "POST"), (":path", "/v1/x")], more].concat();
    Part::RequestHeaders(HttpHeaders {
        headers: list(&all),
        end_of_stream,
    })
}

pub(super) fn answer_begins(end_of_stream: bool) -> Part {
    Part::ResponseHeaders(HttpHeaders {
        headers: list(&[(":status", "200")]),
        end_of_stream,
    })
}

pub(super) fn body(text: impl Into<Bytes>, end_of_stream: bool) -> HttpBody {
    HttpBody {
        body: text.into(),
        end_of_stream,
    }
}

pub(super) fn request_body(text: impl Into<Bytes>, end: bool) -> Part {
    Part::RequestBody(body(text, end))
}

pub(super) fn answer_body(text: &'static str, end: bool) -> Part {
    Part::ResponseBody(body(text, end))
}

pub(super) fn message(modes: (BodyMode, BodyMode), request: Part) -> ProcessingRequest {
    ProcessingRequest {
        metadata_context: None,
        protocol_config: Some(ProtocolConfiguration {
            request_body_mode: modes.0 as i32,
            response_body_mode: modes.1 as i32,
        }),
        request: Some(request),
    }
}

/// A stream that has run: what the picker noted, and the replies after each message.
pub(super) struct Ran {
    pub(super) notes: Vec<String>,
    pub(super) replies: Vec<Vec<ProcessingResponse>>,
    pub(super) error: Option<Status>,
}

/// Sends messages to a session, and then closes the stream without an error.
pub(super) fn run_all(messages: Vec<ProcessingRequest>) -> Ran {
    let picker = Fake::default();
    let runtime = Builder::new_current_thread().build().unwrap();
    let (replies, error) = runtime.block_on(async {
        let mut session = Session::new(picker.clone());
        let (mut replies, mut error) = (Vec::new(), None);
        for message in messages {
            error = session.saw(message).await.err();
            replies.push(std::iter::from_fn(|| session.reply()).collect());
            if error.is_some() || session.is_over() {
                break;
            }
        }
        session.closed();
        (replies, error)
    });
    Ran {
        notes: picker.notes(),
        replies,
        error,
    }
}

pub(super) fn run(modes: (BodyMode, BodyMode), requests: Vec<Part>) -> Ran {
    run_all(
        requests
            .into_iter()
            .map(|one| message(modes, one))
            .collect(),
    )
}

pub(super) const DUPLEX: (BodyMode, BodyMode) =
    (BodyMode::FullDuplexStreamed, BodyMode::FullDuplexStreamed);
pub(super) const BUFFERED: (BodyMode, BodyMode) = (BodyMode::Buffered, BodyMode::Streamed);
pub(super) const ENDPOINTS: &str = "10.0.0.1:80,10.0.0.2:80";

impl Ran {
    pub(super) fn all(&self) -> Vec<&ProcessingResponse> {
        self.replies.iter().flatten().collect()
    }

    /// A word for each reply, which names its kind.
    pub(super) fn words(&self) -> Vec<&'static str> {
        let word = |reply: &&ProcessingResponse| match &reply.response {
            Some(Reply::RequestHeaders(_)) => "request header",
            Some(Reply::ResponseHeaders(_)) => "answer header",
            Some(Reply::RequestBody(_)) => "request body",
            Some(Reply::ResponseBody(_)) => "answer body",
            Some(Reply::RequestTrailers(_)) => "request trailers",
            Some(Reply::ResponseTrailers(_)) => "answer trailers",
            Some(Reply::Immediate(_)) => "immediate",
            None => "nothing",
        };
        self.all().iter().map(word).collect()
    }
}

pub(super) fn common(reply: &ProcessingResponse) -> &CommonResponse {
    match reply.response.as_ref().unwrap() {
        Reply::RequestHeaders(PartResponse { response })
        | Reply::ResponseHeaders(PartResponse { response })
        | Reply::RequestBody(PartResponse { response })
        | Reply::ResponseBody(PartResponse { response }) => response.as_ref().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The value to which a reply sets a header.
pub(super) fn set<'a>(reply: &'a ProcessingResponse, name: &str) -> Option<&'a [u8]> {
    let mutation = common(reply).header_mutation.as_ref()?;
    let headers = mutation
        .set_headers
        .iter()
        .map(|one| one.header.as_ref().unwrap());
    let found = headers.filter(|header| header.key == name).last();
    found.map(|header| &header.raw_value[..])
}

pub(super) fn in_metadata(reply: &ProcessingResponse) -> Option<&str> {
    let fields = &reply.dynamic_metadata.as_ref()?.fields;
    match fields["envoy.lb"].kind.as_ref().unwrap() {
        Kind::Fields(inner) => match inner.fields[ENDPOINT].kind.as_ref().unwrap() {
            Kind::Text(text) => Some(text),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// The chunks of a body in the replies, joined, and whether the last one is marked as the end.
pub(super) fn streamed(
    replies: &[&ProcessingResponse],
    wanted: fn(&Reply) -> bool,
) -> (Vec<u8>, bool) {
    let (mut text, mut end) = (Vec::new(), false);
    for reply in replies {
        if !wanted(reply.response.as_ref().unwrap()) {
            continue;
        }
        assert!(!end, "a body after its end");
        let mutation = common(reply).body_mutation.as_ref().unwrap();
        let Some(Mutation::Streamed(piece)) = &mutation.mutation else {
            panic!("{mutation:?}");
        };
        assert!(piece.body.len() <= CHUNK);
        text.extend_from_slice(&piece.body);
        end = piece.end_of_stream;
    }
    (text, end)
}

pub(super) fn is_request_body(response: &Reply) -> bool {
    matches!(response, Reply::RequestBody(_))
}

pub(super) fn is_answer_body(response: &Reply) -> bool {
    matches!(response, Reply::ResponseBody(_))
}
