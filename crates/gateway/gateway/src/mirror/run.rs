//! The task of one mirrored request, and the tap through which the client's response reaches it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::response::Parts;
use axum::http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use penstock_api_types::RESUMABLE;
use penstock_api_types::sse_reader::{Event, EventReader};
use penstock_fleet::{InFlight, Outcome as Ended};
use penstock_http::ClientError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::info;

use crate::attempt::outcome_of;
use crate::call::{Head, ProxiedRequest};
use crate::events::{EventContent, data, reader, values};
use crate::filter::BodyFilter;
use crate::gateway::Gateway;
use crate::headers::{REQUEST_ID, is_plain, is_stream};
use crate::members::{Members, is_text};
use crate::mirror::MirrorSettings;
use crate::mirror::budget::Ticket;
use crate::mirror::compare::Comparison;
use crate::mirror::counts::{Outcome, Reason, Side};
use crate::pool::{Pool, Prompt, Routed};
use crate::scan::Fields;

/// Interval at which a task checks whether the load is too high to continue mirroring.
const TICK: Duration = Duration::from_millis(100);

/// Copies the client's response (the primary) to the task. It never blocks or fails.
#[derive(Debug)]
pub(crate) struct Tap {
    /// `None` once the budget is exceeded or the response has ended.
    sender: Option<UnboundedSender<ResponsePart>>,
    ticket: Arc<Ticket>,
}

#[derive(Debug)]
enum ResponsePart {
    Bytes(Bytes),
    End,
}

impl Tap {
    /// Copies bytes of the response, as they are sent to the client.
    fn see(&mut self, bytes: &Bytes) {
        if bytes.is_empty() || self.sender.is_none() {
            return;
        }
        if !self.ticket.hold(bytes.len()) {
            self.sender = None;
        } else if let Some(sender) = &self.sender {
            let _ = sender.send(ResponsePart::Bytes(bytes.clone()));
        }
    }

    /// Marks the response as complete. If the tap is dropped without this call, it counts as
    /// incomplete.
    pub(crate) fn end(&mut self) {
        if let Some(sender) = self.sender.take() {
            let _ = sender.send(ResponsePart::End);
        }
    }
}

impl BodyFilter for Tap {
    fn events(&mut self, events: &mut Vec<Event>) {
        events.iter().for_each(|event| self.see(event.bytes()));
    }

    fn part(&mut self, part: Bytes) -> Bytes {
        self.see(&part);
        part
    }
}

/// Starts to mirror a request when its response begins with `parts`, if the request is in the
/// sample and the budget has room.
pub(crate) fn begin(
    gateway: &Arc<Gateway>,
    call: &ProxiedRequest,
    (pool, model): (&Pool, &str),
    parts: &Parts,
    arrived: Instant,
) -> Option<Tap> {
    let settings = pool.mirror.settings()?;
    let is_answer = parts.status == StatusCode::OK && is_plain(&parts.headers);
    if !is_answer || !is_text(call.path()) || !pool.mirror.draws(settings.share) {
        return None;
    }
    let pools = gateway.models.pools();
    let target = pools.iter().find(|pool| *pool.name == *settings.pool)?;
    let room = may_go_on(gateway, target);
    let admitted = room.and_then(|()| pool.mirror.admit(&settings, call.body.len()));
    let ticket = match admitted {
        Ok(ticket) => ticket,
        Err(reason) => {
            pool.mirror.counts.ended(&Outcome::Dropped(reason));
            return None;
        }
    };
    let (sender, primary) = unbounded_channel();
    let model = settings.model.as_deref().unwrap_or(model).to_owned();
    let copy = Copy {
        gateway: gateway.clone(),
        target: target.clone(),
        head: mirrored(&call.head, &call.id),
        path: call.path().to_owned(),
        id: call.id.clone(),
        body: call.body.clone(),
        prompt: Prompt {
            tokens: Vec::new(),
            ..call.prompt.clone()
        },
        model,
        is_stream: is_stream(&parts.headers),
        settings,
        ticket: ticket.clone(),
        arrived,
    };
    tokio::spawn(copy.run(primary));
    let sender = Some(sender);
    Some(Tap { sender, ticket })
}

/// Whether there is spare capacity for mirrored requests in the gateway and in the `target` pool.
fn may_go_on(gateway: &Gateway, target: &Pool) -> Result<(), Reason> {
    if gateway.draining() || gateway.is_busy() {
        return Err(Reason::Load);
    }
    match target.flow.is_saturated() {
        true => Err(Reason::Saturated),
        false => Ok(()),
    }
}

fn mirrored(head: &Head, id: &str) -> Head {
    let mut head = head.clone();
    head.headers.remove(RESUMABLE);
    if let Ok(id) = HeaderValue::from_str(&format!("{id}-mirror")) {
        head.headers.insert(REQUEST_ID, id);
    }
    head
}

/// A request to be mirrored.
struct Copy {
    gateway: Arc<Gateway>,
    target: Arc<Pool>,
    head: Head,
    path: String,
    id: String,
    body: Bytes,
    prompt: Prompt,
    /// The model's name in the pool to which the request is mirrored.
    model: String,
    is_stream: bool,
    settings: Arc<MirrorSettings>,
    ticket: Arc<Ticket>,
    arrived: Instant,
}

impl Copy {
    async fn run(self, primary: UnboundedReceiver<ResponsePart>) {
        let patience = Duration::from_secs_f64(self.settings.timeout_s);
        let outcome = tokio::select! {
            compared = self.compare(primary) => compared.unwrap_or_else(|outcome| outcome),
            reason = self.too_much_load() => Outcome::Dropped(reason),
            () = tokio::time::sleep(patience) => Outcome::Failed("it took too long".to_owned()),
        };
        self.ticket.counts().ended(&outcome);
        self.note(&outcome);
    }

    async fn too_much_load(&self) -> Reason {
        loop {
            tokio::time::sleep(TICK).await;
            if let Err(reason) = may_go_on(&self.gateway, &self.target) {
                return reason;
            }
        }
    }

    /// Sends the request and compares the responses. An `Err` is an outcome that was reached before
    /// the comparison was complete.
    async fn compare(
        &self,
        mut primary: UnboundedReceiver<ResponsePart>,
    ) -> Result<Outcome, Outcome> {
        let members = Members::of(&self.body).unwrap_or_default();
        if !members.are_repeatable(&self.path) {
            return Err(Outcome::Dropped(Reason::Stored));
        }
        let counts = self.ticket.counts();
        let mut comparison = members.are_deterministic().then(Comparison::default);
        let mut mirror = self.send()?;
        let mut readers = [Reader::new(self.is_stream), Reader::new(self.is_stream)];
        let began = [self.arrived, Instant::now()];
        let mut kept = Kept::new(&self.ticket);
        let mut ended = [false; 2];
        while ended != [true; 2] {
            let (side, bytes) = tokio::select! {
                heard = primary.recv(), if !ended[0] => (Side::Primary, self.heard(heard)?),
                bytes = mirror.next(), if !ended[1] => (Side::Mirror, bytes?),
            };
            let reader = &mut readers[side as usize];
            let said = match &bytes {
                Some(bytes) => reader.read(bytes),
                None => reader.end(),
            };
            if side == Side::Mirror && bytes.is_some() {
                mirror.saw(std::mem::take(&mut reader.data_lines));
            }
            if reader.has_begun() && self.is_stream {
                counts.first(side, began[side as usize].elapsed());
            }
            if bytes.is_none() {
                ended[side as usize] = true;
                counts.whole(side, began[side as usize].elapsed());
            }
            for said in said {
                fault(side, &said)?;
                let parts = comparison.as_mut().and_then(|both| both.add(side, said));
                if let Some(at) = parts {
                    return Ok(Outcome::Different(at));
                }
            }
            let ahead = comparison.as_ref().map_or(0, Comparison::held);
            if !kept.is(ahead + readers.iter().map(Reader::held).sum::<usize>()) {
                return Err(Outcome::Dropped(Reason::HeldBytes));
            }
        }
        Ok(match comparison.map(|both| both.end()) {
            None => Outcome::Uncompared,
            Some(None) => Outcome::Equal,
            Some(Some(at)) => Outcome::Different(at),
        })
    }

    /// The bytes in a message from the tap; `None` at the end of the response.
    fn heard(&self, heard: Option<ResponsePart>) -> Result<Option<Bytes>, Outcome> {
        match heard {
            Some(ResponsePart::Bytes(bytes)) => {
                self.ticket.release(bytes.len());
                Ok(Some(bytes))
            }
            Some(ResponsePart::End) => Ok(None),
            None if self.ticket.is_over() => Err(Outcome::Dropped(Reason::HeldBytes)),
            None => Err(Outcome::Dropped(Reason::Primary)),
        }
    }

    fn send(&self) -> Result<Source, Outcome> {
        let fields = Fields::of(&self.body).unwrap_or_default();
        let body = fields.renamed(&self.body, &self.model);
        let routed = self.target.route(&self.model, &self.prompt, &[]);
        let routed = routed.map_err(|none| Outcome::Failed(none.to_string()))?;
        let Routed { url, in_flight, .. } = routed;
        let request = self
            .head
            .to(&url, &body.unwrap_or_else(|| self.body.clone()));
        let request = request.map_err(|error| Outcome::Failed(error.message))?;
        let client = self.gateway.client.clone();
        Ok(Source {
            state: SourceState::Sent(Box::pin(async move { client.send(request).await })),
            in_flight: Some(in_flight),
            is_stream: self.is_stream,
        })
    }

    /// Logs a difference or failure, at most once a second, without any text of request or
    /// responses.
    fn note(&self, outcome: &Outcome) {
        let text = match outcome {
            Outcome::Different(at) => {
                let (characters, tokens) = (at.characters, at.tokens);
                format!("differs behind {characters} characters, {tokens} events")
            }
            Outcome::Failed(why) => format!("failed: {why}"),
            _ => return,
        };
        if self.ticket.counts().may_log() {
            let (id, pool) = (&self.id, &self.target.name);
            info!("{id}: its mirror in pool {pool} {text}");
        }
    }
}

/// An error if the content reports an error: such a response is not compared.
fn fault(side: Side, said: &EventContent) -> Result<(), Outcome> {
    match (said.failed, side) {
        (false, _) => Ok(()),
        (true, Side::Primary) => Err(Outcome::Dropped(Reason::Primary)),
        (true, Side::Mirror) => Err(Outcome::Failed("an error in its answer".to_owned())),
    }
}

/// Bytes of the responses that a task holds, which count against the budget.
struct Kept<'a> {
    ticket: &'a Ticket,
    bytes: usize,
}

impl<'a> Kept<'a> {
    fn new(ticket: &'a Ticket) -> Self {
        Self { ticket, bytes: 0 }
    }

    /// Sets the number of bytes held; returns false if the budget is exceeded.
    fn is(&mut self, bytes: usize) -> bool {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes <= before {
            self.ticket.release(before - bytes);
            return true;
        }
        self.ticket.hold(bytes - before)
    }
}

/// The mirror's response.
struct Source {
    state: SourceState,
    /// The reservation at the replica. If still present on drop, the request was abandoned.
    in_flight: Option<InFlight>,
    is_stream: bool,
}

type Sent = Pin<Box<dyn Future<Output = Result<Response<Incoming>, ClientError>> + Send>>;

enum SourceState {
    Sent(Sent),
    Body(Incoming),
}

impl Source {
    /// The next bytes; `None` at the end. Cancel-safe: dropping the future loses no data.
    async fn next(&mut self) -> Result<Option<Bytes>, Outcome> {
        loop {
            match &mut self.state {
                SourceState::Sent(sent) => {
                    let response = sent.await.map_err(|error| self.broke(&error))?;
                    self.state = SourceState::Body(self.began(response)?);
                }
                SourceState::Body(body) => match body.frame().await {
                    Some(Ok(frame)) => {
                        if let Ok(bytes) = frame.into_data() {
                            return Ok(Some(bytes));
                        }
                    }
                    Some(Err(error)) => return Err(self.failed(Ended::Failed, error.to_string())),
                    None => {
                        self.end(Ended::Served);
                        return Ok(None);
                    }
                },
            }
        }
    }

    fn began(&mut self, response: Response<Incoming>) -> Result<Incoming, Outcome> {
        let status = response.status();
        if status == StatusCode::OK && is_stream(response.headers()) == self.is_stream {
            return Ok(response.into_body());
        }
        Err(self.failed(outcome_of(status), format!("it answered {status}")))
    }

    fn broke(&mut self, error: &ClientError) -> Outcome {
        let ended = match error {
            ClientError::Connect(_) | ClientError::Refused(_) => Ended::ConnectFailed,
            ClientError::Broken(_) => Ended::Failed,
        };
        self.failed(ended, error.to_string())
    }

    fn failed(&mut self, ended: Ended, why: String) -> Outcome {
        self.end(ended);
        Outcome::Failed(why)
    }

    /// Records received bytes of a stream that have `data_lines` data lines.
    fn saw(&mut self, data_lines: u32) {
        if let Some(in_flight) = self.in_flight.as_mut().filter(|_| self.is_stream) {
            in_flight.first_token();
            in_flight.tokens(data_lines);
        }
    }

    fn end(&mut self, ended: Ended) {
        if let Some(in_flight) = self.in_flight.take() {
            in_flight.end(ended);
        }
    }
}

/// Decodes a response's bytes into texts and finish reasons.
struct Reader {
    is_stream: bool,
    events: EventReader,
    /// Number of data lines since the counter was last read.
    data_lines: u32,
    whole: Vec<u8>,
    seen: usize,
}

impl Reader {
    fn new(is_stream: bool) -> Self {
        Self {
            is_stream,
            events: reader(),
            data_lines: 0,
            whole: Vec::new(),
            seen: 0,
        }
    }

    fn read(&mut self, bytes: &Bytes) -> Vec<EventContent> {
        self.seen += 1;
        if !self.is_stream {
            self.whole.extend_from_slice(bytes);
            return Vec::new();
        }
        self.events.push(bytes.clone());
        let mut said = Vec::new();
        for event in &mut self.events {
            self.data_lines += event.data_lines().count() as u32;
            said.extend(data(&event).iter().flat_map(|data| contents(data)));
        }
        said
    }

    fn end(&mut self) -> Vec<EventContent> {
        self.seen += 1;
        contents(&std::mem::take(&mut self.whole))
    }

    /// Whether the last call that read content was the first one.
    fn has_begun(&self) -> bool {
        self.seen == 1
    }

    fn held(&self) -> usize {
        self.whole.len() + self.events.held()
    }
}

fn contents(json: &[u8]) -> Vec<EventContent> {
    values(json).map(|value| EventContent::of(&value)).collect()
}
