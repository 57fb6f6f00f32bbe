//! Pooled requests at the engine. The number of inputs in flight is limited to the number of
//! requests that the engine runs concurrently.

use std::sync::Arc;
use std::task::{Context, Poll};

use penstock_api_types::{ApiError, PoolingUsage};
use penstock_engine_client::RequestStream;
use penstock_wire::{Finish, Output, TokenRequest};

use crate::admission::{AdmissionPermit, Slot};
use crate::app::App;
use crate::engine::{self, poll_output};
use crate::metrics::RequestTimer;
use crate::request_meta::RequestMeta;

/// Validated inputs, with a permit for the ones in flight.
pub(crate) struct Inputs {
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) cache_salt: Vec<u8>,
    pub(crate) priority: i32,
    pub(crate) permit: AdmissionPermit,
}

/// An input in flight at the engine.
struct Open {
    index: usize,
    events: RequestStream,
    timer: RequestTimer,
    prompt_tokens: u32,
    slot: Arc<Slot>,
}

/// Calls `take` with the index and vector of each input, in completion order. Dropping the future
/// cancels the inputs in flight.
///
/// # Errors
/// The engine rejected an input, or ended it with an error.
pub(crate) async fn pool(
    app: &Arc<App>,
    arrival: &RequestMeta,
    inputs: Inputs,
    mut take: impl FnMut(usize, Vec<f32>),
) -> Result<PoolingUsage, ApiError> {
    let size = inputs.permit.limits.pooler.size as usize;
    // Template without a prompt, copied for each input.
    let shared = TokenRequest {
        pool: true,
        priority: inputs.priority,
        cache_salt: inputs.cache_salt,
        ..TokenRequest::default()
    };
    let mut waiting = inputs.prompts.into_iter().enumerate();
    let mut open = Vec::with_capacity(inputs.permit.slots.len());
    for slot in inputs.permit.slots {
        if let Some((index, prompt)) = waiting.next() {
            open.push(start(app, arrival, &shared, index, prompt, Arc::new(slot))?);
        }
    }
    let (mut usage, mut turn) = (PoolingUsage::default(), 0);
    while !open.is_empty() {
        let next = std::future::poll_fn(|cx| poll_next(&mut open, &mut turn, cx));
        let (at, output) = next.await?;
        let ended = &mut open[at];
        if output.vector.len() != size {
            ended.timer.failed();
            return Err(ApiError::internal("The engine gave no vector."));
        }
        ended.timer.pooled(&output);
        usage.prompt_tokens += u64::from(ended.prompt_tokens);
        usage.cached_tokens += u64::from(output.cached_tokens);
        take(ended.index, output.vector);
        match waiting.next() {
            Some((index, prompt)) => {
                let slot = Arc::clone(&ended.slot);
                slot.pass_on();
                open[at] = start(app, arrival, &shared, index, prompt, slot)?;
            }
            None => drop(open.swap_remove(at)),
        }
    }
    Ok(usage)
}

fn start(
    app: &App,
    arrival: &RequestMeta,
    shared: &TokenRequest,
    index: usize,
    prompt: Vec<u32>,
    slot: Arc<Slot>,
) -> Result<Open, ApiError> {
    let prompt_tokens = prompt.len() as u32;
    let request = TokenRequest {
        prompt,
        expires: index == 0,
        ..shared.clone()
    };
    let events = engine::submit(app, request, Arc::clone(&slot))?;
    if let Some(caller) = &arrival.caller {
        caller.usage.spend(prompt_tokens);
    }
    let timer = RequestTimer::new(app.metrics.clone(), arrival.clone(), prompt_tokens, 0);
    Ok(Open {
        index,
        events,
        timer,
        prompt_tokens,
        slot,
    })
}

/// The final output of any input in flight, with its position. `turn` is the position to poll first
/// (round robin), so that no input starves another.
fn poll_next(
    open: &mut [Open],
    turn: &mut usize,
    cx: &mut Context<'_>,
) -> Poll<Result<(usize, Output), ApiError>> {
    let count = open.len();
    for step in 0..count {
        let at = (*turn + step) % count;
        let each = &mut open[at];
        while let Poll::Ready(output) = poll_output(&mut each.events, cx) {
            match &output {
                Ok(output) if output.finish == Finish::None => continue,
                Ok(_) => {}
                Err(_) => each.timer.failed(),
            }
            *turn = at + 1;
            return Poll::Ready(output.map(|output| (at, output)));
        }
    }
    Poll::Pending
}
