//! Turns the choices of a request into its response, streamed or whole.

use std::task::Poll;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::BytesMut;
use penstock_api_types::{ApiError, RESUMABLE, StreamOptions};
use penstock_http::{PipeWriter, WriteError, pipe};

use crate::choices::ChoiceStreams;
use crate::delta::OutputDelta;
use crate::marks::Marks;
use crate::render::Render;
use penstock_api_http::json;

/// Maximum number of rendered bytes that a client may leave unread. Beyond it, the request is
/// aborted.
const MAX_UNREAD: usize = 1 << 20;

type Next = Option<Result<(usize, OutputDelta), ApiError>>;

/// Responds with a stream if `options` is set, else with one body.
///
/// # Errors
/// The engine rejected the request, or it failed before anything was sent.
pub(crate) async fn answer(
    choices: ChoiceStreams,
    render: impl Render,
    options: Option<StreamOptions>,
) -> Result<Response, ApiError> {
    match options {
        Some(options) => events(choices, render, options).await,
        None => whole(choices, render).await,
    }
}

/// Waits for all choices to end and answers with one body.
async fn whole(mut choices: ChoiceStreams, mut render: impl Render) -> Result<Response, ApiError> {
    let mut merged: Vec<OutputDelta> = Vec::new();
    merged.resize_with(choices.len(), OutputDelta::default);
    while let Some(next) = choices.next().await {
        let (index, delta) = next?;
        merged[index].merge(delta);
    }
    Ok(json(render.response(&merged, choices.usage())))
}

/// Responds with an event stream. The headers are sent after the engine's first event, so that a
/// rejected request gets an error status.
async fn events(
    mut choices: ChoiceStreams,
    mut render: impl Render,
    options: StreamOptions,
) -> Result<Response, ApiError> {
    let first = choices.next().await.transpose()?;
    replay(&mut choices, &mut render, options);
    let (writer, reader) = pipe(MAX_UNREAD);
    let marks = choices.marks.take().filter(|_| render.resumable());
    let marked = marks.is_some();
    tokio::spawn(pump(choices, render, options, first, marks, writer));
    let mut response = Response::new(Body::new(reader));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Disables nginx's response buffering.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    if marked {
        let name = HeaderName::from_static(RESUMABLE);
        headers.insert(name, HeaderValue::from_static("1"));
    }
    Ok(response)
}

/// Replays the steps sent by another server, to restore the renderer's state.
fn replay(choices: &mut ChoiceStreams, render: &mut impl Render, options: StreamOptions) {
    let mut sent = BytesMut::new();
    let usage = choices.usage_of(0);
    let usage = options.continuous_usage_stats.then_some(&usage);
    for delta in std::mem::take(&mut choices.replayed) {
        render.chunk(&mut sent, 0, &delta, usage);
        sent.clear();
    }
}

/// Writes each delta until the end, an error, or a client disconnect. Returning drops the choices,
/// which cancels those in flight.
async fn pump(
    mut choices: ChoiceStreams,
    mut render: impl Render,
    options: StreamOptions,
    first: Option<(usize, OutputDelta)>,
    mut marks: Option<Marks>,
    mut writer: PipeWriter,
) {
    let mut next: Next = first.map(Ok);
    loop {
        let outcome = match next {
            Some(Ok((index, delta))) => {
                let usage = options
                    .continuous_usage_stats
                    .then(|| choices.usage_of(index));
                writer.write(|out| {
                    if let Some(marks) = &mut marks {
                        marks.begin(out);
                    }
                    render.chunk(out, index, &delta, usage.as_ref());
                    if marks.is_some() && delta.finish.is_none() {
                        Marks::step(out, &delta.tokens);
                    }
                })
            }
            Some(Err(error)) => return fail(writer, render, &error, marks.is_some()),
            None => {
                let usage = choices.usage();
                return writer.finish(|out| render.end(out, &usage, options));
            }
        };
        match outcome {
            Ok(()) => {}
            Err(WriteError::Gone) => return,
            Err(WriteError::Slow) => return fail(writer, render, &too_slow(), false),
        }
        next = match next_or_gone(&mut choices, &mut writer).await {
            Some(next) => next,
            None => return,
        };
    }
}

/// The next event, or `None` if the client has disconnected.
async fn next_or_gone(choices: &mut ChoiceStreams, writer: &mut PipeWriter) -> Option<Next> {
    std::future::poll_fn(|cx| {
        if writer.poll_gone(cx).is_ready() {
            return Poll::Ready(None);
        }
        choices.poll_next(cx).map(Some)
    })
    .await
}

fn fail(writer: PipeWriter, mut render: impl Render, error: &ApiError, marked: bool) {
    writer.finish(|out| {
        if marked {
            Marks::failed(out, error);
        }
        render.fail(out, error);
    });
}

fn too_slow() -> ApiError {
    ApiError::left_unread(MAX_UNREAD)
}
