//! Where the results of one request go, and what goes wrong with it on the way.

use penstock_openai::{ApiError, sse};
use penstock_openai::{FinishReason, StreamOptions, Usage};
use penstock_wire::{Finish, Output};
use tokio::sync::oneshot;

use super::chunks::Chunks;
use super::pipe::PipeWriter;
use crate::faults::FaultKind;
use crate::vocabulary::Vocabulary;

/// The result of a request that does not stream.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) text: String,
    pub(crate) finish: Option<FinishReason>,
    pub(crate) usage: Usage,
}

pub(crate) struct Seat {
    pub(crate) usage: Usage,
    pub(crate) fault: Option<FaultKind>,
    pub(crate) kind: SeatKind,
}

pub(crate) enum SeatKind {
    Stream(Box<Stream>),
    Whole {
        text: String,
        answered: Option<oneshot::Sender<Result<Answered, ApiError>>>,
    },
}

pub(crate) struct Stream {
    pub(crate) chunks: Chunks,
    pub(crate) options: StreamOptions,
    /// `None` once the stream has ended.
    pub(crate) pipe: Option<PipeWriter>,
    /// Told of the engine's first answer: the response's headers wait for it. `None` once it was.
    pub(crate) opening: Option<oneshot::Sender<Result<(), ApiError>>>,
}

/// What becomes of the request after an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    GoesOn,
    Ended,
    /// It has ended for the client, and the engine is to let go of it.
    Broken,
    /// Nothing more is sent, until the client leaves.
    Stalled,
}

impl Seat {
    /// Passes on one output.
    pub(crate) fn take(&mut self, output: &Output, vocabulary: &Vocabulary) -> Fate {
        if let Some(error) = refusal(output) {
            self.fail(error);
            return Fate::Ended;
        }
        self.usage.cached_tokens += output.cached_tokens;
        for (at, token) in output.tokens.iter().enumerate() {
            if let Some(fate) = self.strike() {
                return fate;
            }
            self.usage.completion_tokens += 1;
            let last = at + 1 == output.tokens.len();
            let finish = if last { reason(output.finish) } else { None };
            self.token(vocabulary.text(*token), finish);
        }
        if output.finish == Finish::None {
            return Fate::GoesOn;
        }
        self.complete(reason(output.finish));
        Fate::Ended
    }

    /// The fault that is due after the tokens sent so far.
    fn strike(&mut self) -> Option<Fate> {
        let sent = self.usage.completion_tokens;
        match self.fault? {
            FaultKind::ErrorEvent(after) if sent == after => {
                self.fail(ApiError::engine_failed("a fault on purpose"));
                Some(Fate::Broken)
            }
            FaultKind::Cut(after) if sent == after => {
                self.cut();
                Some(Fate::Broken)
            }
            FaultKind::Stall(after) if sent == after => Some(Fate::Stalled),
            FaultKind::Malformed(after) if sent == after => {
                self.open();
                if let SeatKind::Stream(stream) = &mut self.kind {
                    stream.write(|out| {
                        out.extend_from_slice(b"data: {\"id\": \"on purpose\", \"cho\n\n")
                    });
                }
                None
            }
            _ => None,
        }
    }

    fn token(&mut self, text: &str, finish: Option<FinishReason>) {
        self.open();
        let finish = finish.filter(|_| self.fault != Some(FaultKind::NoFinish));
        let usage = self.usage;
        match &mut self.kind {
            SeatKind::Whole { text: whole, .. } => whole.push_str(text),
            SeatKind::Stream(stream) => {
                let usage = stream.options.continuous_usage_stats.then_some(&usage);
                stream.pipe.iter().for_each(|pipe| {
                    pipe.write(|out| match (finish, usage) {
                        (None, None) => stream.chunks.token(out, text),
                        _ => stream.chunks.event(out, text, finish, usage),
                    });
                });
            }
        }
    }

    /// The first answer of the engine: headers may go, and the role of a chat.
    fn open(&mut self) {
        let usage = Usage {
            completion_tokens: 0,
            ..self.usage
        };
        let SeatKind::Stream(stream) = &mut self.kind else {
            return;
        };
        if let Some(opening) = stream.opening.take() {
            // The client may have left meanwhile; then a CANCEL is on its way.
            let _ = opening.send(Ok(()));
            let usage = stream.options.continuous_usage_stats.then_some(&usage);
            if let Some(pipe) = &stream.pipe {
                pipe.write(|out| stream.chunks.opening(out, usage));
            }
        }
    }

    fn complete(&mut self, finish: Option<FinishReason>) {
        let usage = self.usage;
        match &mut self.kind {
            SeatKind::Stream(stream) => {
                let wanted = stream.options.include_usage && self.fault != Some(FaultKind::NoUsage);
                if let Some(pipe) = stream.pipe.take() {
                    pipe.write(|out| {
                        if wanted {
                            stream.chunks.usage(out, &usage);
                        }
                        sse::done(out);
                    });
                    pipe.finish();
                }
            }
            SeatKind::Whole { text, answered } => {
                let text = std::mem::take(text);
                let finish = finish.filter(|_| self.fault != Some(FaultKind::NoFinish));
                if let Some(answered) = answered.take() {
                    let _ = answered.send(Ok(Answered {
                        text,
                        finish,
                        usage,
                    }));
                }
            }
        }
    }

    /// Ends the request with an error: a status as long as nothing was sent, else an event.
    pub(crate) fn fail(&mut self, error: ApiError) {
        match &mut self.kind {
            SeatKind::Whole { answered, .. } => {
                if let Some(answered) = answered.take() {
                    let _ = answered.send(Err(error));
                }
            }
            SeatKind::Stream(stream) => {
                let pipe = stream.pipe.take();
                if let Some(opening) = stream.opening.take() {
                    let _ = opening.send(Err(error));
                } else if let Some(pipe) = pipe {
                    pipe.write(|out| {
                        sse::error(out, &error);
                        sse::done(out);
                    });
                    pipe.finish();
                }
            }
        }
    }

    fn cut(&mut self) {
        self.open();
        match &mut self.kind {
            // Dropped without an answer: the handler breaks the connection.
            SeatKind::Whole { answered, .. } => drop(answered.take()),
            SeatKind::Stream(stream) => {
                if let Some(pipe) = stream.pipe.take() {
                    pipe.cut();
                }
            }
        }
    }
}

impl Stream {
    fn write(&mut self, render: impl FnOnce(&mut bytes::BytesMut)) {
        if let Some(pipe) = &self.pipe {
            pipe.write(render);
        }
    }
}

fn reason(finish: Finish) -> Option<FinishReason> {
    match finish {
        Finish::Stop => Some(FinishReason::Stop),
        Finish::Length => Some(FinishReason::Length),
        _ => None,
    }
}

/// An ending that the client did not ask for.
fn refusal(output: &Output) -> Option<ApiError> {
    match output.finish {
        Finish::None | Finish::Stop | Finish::Length => None,
        Finish::Rejected => Some(ApiError::queue_full(1)),
        Finish::Cancelled => Some(ApiError::unavailable("The engine is shutting down.", 5)),
        Finish::Error => {
            let reason = output.error.as_deref().unwrap_or("it gave no reason");
            Some(ApiError::internal(format!(
                "The engine could not run the request: {reason}."
            )))
        }
    }
}
