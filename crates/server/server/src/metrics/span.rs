//! Spans of one request at the engine: OpenTelemetry's attributes for generative AI, and vLLM's for
//! latencies, in seconds.

use std::time::Instant;

use penstock_http::{OpenSpan, SpanKind};
use penstock_wire::TokenRequest;

use super::Ending;
use crate::request_meta::RequestMeta;

/// Instants of a request, in chronological order.
pub(crate) struct Phases {
    pub(crate) arrived: Instant,
    pub(crate) submitted: Instant,
    /// The engine's first step with a part of the prompt.
    pub(crate) scheduled: Instant,
    pub(crate) first_token: Instant,
    pub(crate) last_token: Instant,
}

/// Starts the span of one of `choices` requests to the engine; `None` without a trace. `operation`
/// is `chat` or `text_completion`.
pub(crate) fn open(
    arrival: &RequestMeta,
    operation: &'static str,
    model: &str,
    choices: usize,
    request: &TokenRequest,
) -> Option<OpenSpan> {
    let parent = arrival.trace.as_ref()?;
    let name = format!("{operation} {model}");
    let mut span = parent.child(name, SpanKind::Internal, arrival.at);
    // converts by the shortest decimal text, so that 0.7 is not exported as 0.699999988
    let decimal = |number: f32| number.to_string().parse::<f64>().ok();
    span.set("gen_ai.operation.name", operation);
    span.set("gen_ai.provider.name", "penstock");
    span.set("gen_ai.request.model", model);
    span.set("gen_ai.request.choice.count", choices);
    span.set("gen_ai.request.max_tokens", request.max_tokens);
    let sampling = &request.sampling;
    span.set("gen_ai.request.temperature", decimal(sampling.temperature));
    span.set("gen_ai.request.top_p", decimal(sampling.top_p));
    Some(span)
}

/// Ends a span. `tokens` are the numbers of prompt and output tokens; `phases` is `None` without
/// output.
pub(super) fn end(mut span: OpenSpan, ending: Ending, tokens: (u32, u32), phases: Option<Phases>) {
    span.set("gen_ai.usage.input_tokens", tokens.0);
    span.set("gen_ai.usage.output_tokens", tokens.1);
    match ending {
        Ending::Stop => span.set("gen_ai.response.finish_reasons", vec!["stop"]),
        Ending::Length => span.set("gen_ai.response.finish_reasons", vec!["length"]),
        Ending::Abort => span.fail("abort"),
        Ending::Error => span.fail("error"),
    }
    let Some(phases) = phases else {
        return;
    };
    let Phases {
        arrived,
        submitted,
        scheduled,
        first_token: first,
        last_token: last,
    } = phases;
    for (key, from, to) in [
        ("gen_ai.latency.time_in_queue", submitted, scheduled),
        ("gen_ai.latency.time_to_first_token", arrived, first),
        ("gen_ai.latency.time_in_model_prefill", scheduled, first),
        ("gen_ai.latency.time_in_model_decode", first, last),
        ("gen_ai.latency.time_in_model_inference", scheduled, last),
        ("gen_ai.latency.e2e", arrived, last),
    ] {
        span.set(key, to.saturating_duration_since(from).as_secs_f64());
    }
    for (name, from, to) in [
        ("queue", submitted, scheduled),
        ("prefill", scheduled, first),
        ("decode", first, last),
    ] {
        let phase = span
            .parent()
            .child(name.to_owned(), SpanKind::Internal, from);
        phase.end_at(to);
    }
}
