//! The order of messages in one stream, which carries a request and its response.
//!
//! ```text
//!  header --(no body, or the mode shows it too late)--> picked
//!     |
//!     +--> waiting: body, body, ... --(its end, or trailers)--> picked --> answer's header, body
//! ```

use std::collections::VecDeque;

use bytes::Bytes;

use crate::heads::{answer_head, head};
use crate::messages::{
    BodyMode, HttpBody, HttpHeaders, Metadata, Part, ProcessingRequest, ProcessingResponse, Reply,
};
use crate::modes::Modes;
use crate::picker::{BodyVisibility, Call, Excess, Picked, Picker, Refusal};
use crate::replies::{
    changed, destination, pieces, plain, refused, replaced, trailers, unchanged, with_endpoints,
};
use crate::status::{Code, Status};

/// Progress of the request and its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// No message has arrived.
    New,
    /// The request's header has arrived; the choice of an endpoint waits for the body.
    Waiting,
    Picked,
    /// The response header has arrived.
    Answered,
    /// The response is complete, or the picker refused the request.
    Over,
}

/// State of one stream. [`Self::reply`] returns the replies to Envoy in order.
pub(crate) struct Session<P: Picker> {
    picker: P,
    step: Step,
    modes: Modes,
    call: Option<P::Call>,
    replies: VecDeque<ProcessingResponse>,
}

impl<P: Picker> Session<P> {
    pub(crate) fn new(picker: P) -> Self {
        Self {
            picker,
            step: Step::New,
            modes: Modes {
                request: BodyMode::None,
                response: BodyMode::None,
            },
            call: None,
            replies: VecDeque::new(),
        }
    }

    /// The next message to Envoy.
    pub(crate) fn reply(&mut self) -> Option<ProcessingResponse> {
        self.replies.pop_front()
    }

    /// Whether the session has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.step == Step::Over && self.call.is_none()
    }

    /// Whether more of the request's body is needed before an endpoint is chosen.
    pub(crate) fn is_waiting(&self) -> bool {
        self.step == Step::Waiting
    }

    /// Whether an endpoint has been chosen.
    pub(crate) fn has_picked(&self) -> bool {
        matches!(self.step, Step::Picked | Step::Answered)
    }

    /// Refuses a waiting request that uses too much memory or time. Returns false if no request is
    /// waiting.
    pub(crate) fn exceeds(&mut self, excess: Excess) -> bool {
        let call = self.call.as_ref().filter(|_| self.is_waiting());
        let Some(refusal) = call.map(|call| call.exceeds(excess)) else {
            return false;
        };
        self.refuse(refusal);
        true
    }

    /// Processes a message from Envoy.
    ///
    /// # Errors
    /// The message is invalid in the current state.
    pub(crate) async fn saw(&mut self, message: ProcessingRequest) -> Result<(), Status> {
        let modes = Modes::of(&message);
        let metadata = message.metadata_context.unwrap_or_default();
        match (message.request, self.step) {
            (Some(Part::RequestHeaders(headers)), Step::New) => {
                self.modes = modes;
                self.begin(headers, &metadata).await;
            }
            (Some(Part::RequestBody(body)), Step::Waiting) => self.collect(body).await,
            (Some(Part::RequestBody(_)), Step::Picked | Step::Answered) => {
                self.push(Reply::RequestBody(unchanged()));
            }
            (Some(Part::RequestTrailers(_)), Step::Waiting) => self.body_ended(true).await,
            (Some(Part::RequestTrailers(_)), Step::Picked | Step::Answered) => {
                self.push(Reply::RequestTrailers(trailers()));
            }
            (Some(Part::ResponseHeaders(headers)), Step::Picked) => {
                self.answered(headers, &metadata);
            }
            (Some(Part::ResponseBody(body)), Step::Answered) => self.pass(body),
            (Some(Part::ResponseTrailers(_)), Step::Answered) => self.answer_trailers(),
            (_, Step::Over) => {}
            (request, step) => return Err(out_of_order(request.as_ref(), step)),
        }
        Ok(())
    }

    /// Records that Envoy has closed the stream, without an error.
    pub(crate) fn closed(&mut self) {
        let ended_unseen = self.step == Step::Answered && self.modes.response == BodyMode::None;
        if let Some(mut call) = self.call.take().filter(|_| ended_unseen) {
            call.end();
        }
    }

    fn push(&mut self, response: Reply) {
        self.replies.push_back(plain(response));
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.replies.clear();
        self.replies.push_back(refused(refusal));
        self.call = None;
        self.step = Step::Over;
    }

    async fn begin(&mut self, headers: HttpHeaders, metadata: &Metadata) {
        let end = headers.end_of_stream;
        match self.picker.begin(head(headers, metadata)) {
            Ok(call) => self.call = Some(call),
            Err(refusal) => return self.refuse(refusal),
        }
        self.step = Step::Waiting;
        if end || !self.modes.waits_for_body() {
            let seen = if end {
                BodyVisibility::All
            } else {
                BodyVisibility::Part
            };
            let Some(picked) = self.pick(seen).await else {
                return;
            };
            let header = Reply::RequestHeaders(destination(&picked, None));
            self.replies.push_back(with_endpoints(&picked, header));
        } else if !self.modes.sends_body_back() {
            self.push(Reply::RequestHeaders(unchanged()));
        }
    }

    async fn collect(&mut self, body: HttpBody) {
        let taken = self
            .call
            .as_mut()
            .map_or(Ok(()), |call| call.take(body.body));
        if let Err(refusal) = taken {
            return self.refuse(refusal);
        }
        if self.modes.sends_body_back() {
            if body.end_of_stream {
                self.body_ended(false).await;
            }
            return;
        }
        let part = self.modes.request == BodyMode::BufferedPartial && !body.end_of_stream;
        let seen = if part {
            BodyVisibility::Part
        } else {
            BodyVisibility::All
        };
        if let Some(picked) = self.pick(seen).await {
            let body = picked.is_rewritten.then(|| picked.body.clone());
            let reply = Reply::RequestBody(destination(&picked, body));
            self.replies.push_back(with_endpoints(&picked, reply));
        }
    }

    /// Handles the end of the request's body; `with_trailers`: trailers follow it.
    async fn body_ended(&mut self, with_trailers: bool) {
        let Some(picked) = self.pick(BodyVisibility::All).await else {
            return;
        };
        if self.modes.sends_body_back() {
            let header = Reply::RequestHeaders(destination(&picked, None));
            self.replies.push_back(with_endpoints(&picked, header));
            let body = pieces(picked.body, !with_trailers, Reply::RequestBody);
            self.replies.extend(body);
            if with_trailers {
                self.push(Reply::RequestTrailers(trailers()));
            }
        } else {
            let reply = Reply::RequestTrailers(trailers());
            self.replies.push_back(with_endpoints(&picked, reply));
        }
    }

    async fn pick(&mut self, seen: BodyVisibility) -> Option<Picked> {
        match self.call.as_mut()?.pick(seen).await {
            Ok(picked) => {
                self.step = Step::Picked;
                Some(picked)
            }
            Err(refusal) => {
                self.refuse(refusal);
                None
            }
        }
    }

    fn answered(&mut self, headers: HttpHeaders, metadata: &Metadata) {
        self.step = Step::Answered;
        let end = headers.end_of_stream;
        let head = answer_head(headers, metadata);
        let change = self.call.as_mut().map(|call| call.answered(&head));
        self.push(Reply::ResponseHeaders(changed(change.unwrap_or_default())));
        if end {
            self.end();
        }
    }

    fn pass(&mut self, body: HttpBody) {
        let sent = body.body.clone();
        let passed = self.call.as_mut().map(|call| call.pass(body.body));
        let mut passed = passed.unwrap_or_else(|| sent.clone());
        if body.end_of_stream {
            let rest = self.end();
            if !rest.is_empty() {
                passed = [passed, rest].concat().into();
            }
        }
        if self.modes.sends_answer_back() {
            let pieces = pieces(passed, body.end_of_stream, Reply::ResponseBody);
            self.replies.extend(pieces);
        } else if passed == sent {
            self.push(Reply::ResponseBody(unchanged()));
        } else {
            self.push(Reply::ResponseBody(replaced(passed)));
        }
    }

    fn answer_trailers(&mut self) {
        let rest = self.end();
        if self.modes.sends_answer_back() {
            self.replies
                .extend(pieces(rest, false, Reply::ResponseBody));
        }
        self.push(Reply::ResponseTrailers(trailers()));
    }

    fn end(&mut self) -> Bytes {
        self.step = Step::Over;
        self.call
            .take()
            .map(|mut call| call.end())
            .unwrap_or_default()
    }
}

fn out_of_order(request: Option<&Part>, step: Step) -> Status {
    let what = match request {
        Some(Part::RequestHeaders(_)) => "a request's header",
        Some(Part::RequestBody(_)) => "a request's body",
        Some(Part::RequestTrailers(_)) => "a request's trailers",
        Some(Part::ResponseHeaders(_)) => "an answer's header",
        Some(Part::ResponseBody(_)) => "an answer's body",
        Some(Part::ResponseTrailers(_)) => "an answer's trailers",
        None => "an unknown message",
    };
    let where_ = match step {
        Step::New => "before the request's header (request_header_mode has to be SEND)",
        Step::Waiting => "before the request's end",
        Step::Picked => "before the answer's header (response_header_mode has to be SEND)",
        Step::Answered | Step::Over => "after the request's header",
    };
    Status::new(Code::InvalidArgument, format!("{what} came {where_}"))
}

#[cfg(test)]
mod tests;
