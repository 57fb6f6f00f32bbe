//! Builds the messages that go back to Envoy.

use axum::http::{HeaderName, HeaderValue as HttpValue, header};
use bytes::Bytes;

use crate::messages::{
    BodyMutation, CommonResponse, HeaderMutation, HeaderValue, HeaderValueOption, HttpBody,
    HttpStatus, ImmediateResponse, Kind, Mutation, OVERWRITE, PartResponse, ProcessingResponse,
    Reply, Struct, TrailersResponse,
};
use crate::picker::{Change, Picked, Refusal};

/// Metadata namespace in which Envoy expects the picked endpoints.
pub(crate) const NAMESPACE: &str = "envoy.lb";
/// Key of the picked endpoints in that namespace, and the name of the header with them.
pub(crate) const ENDPOINT: &str = "x-gateway-destination-endpoint";

/// Maximum size of a body chunk in bytes: Envoy recommends at most 64 KiB for the whole message.
pub(crate) const CHUNK: usize = 62_000;

/// A message without metadata.
pub(crate) fn plain(response: Reply) -> ProcessingResponse {
    ProcessingResponse {
        dynamic_metadata: None,
        response: Some(response),
    }
}

/// Reply that makes Envoy continue without changes.
pub(crate) fn unchanged() -> PartResponse {
    PartResponse {
        response: Some(CommonResponse::default()),
    }
}

pub(crate) fn trailers() -> TrailersResponse {
    TrailersResponse::default()
}

/// Reply that changes headers.
pub(crate) fn changed(change: Change) -> PartResponse {
    PartResponse {
        response: Some(CommonResponse {
            header_mutation: Some(mutation(change)),
            ..CommonResponse::default()
        }),
    }
}

/// Reply that replaces the body, or the chunk of it that was shown.
pub(crate) fn replaced(body: Bytes) -> PartResponse {
    PartResponse {
        response: Some(CommonResponse {
            body_mutation: Some(BodyMutation {
                mutation: Some(whole(body)),
            }),
            ..CommonResponse::default()
        }),
    }
}

/// Reply that sets the destination of a request. If `body` is given, the same message replaces the
/// request's body.
pub(crate) fn destination(picked: &Picked, body: Option<Bytes>) -> PartResponse {
    let mut change = picked.change.clone();
    let endpoints = picked.endpoints.join(",");
    if let Ok(value) = HttpValue::from_str(&endpoints) {
        change.set.push((HeaderName::from_static(ENDPOINT), value));
    }
    if picked.is_rewritten {
        let length = HttpValue::from(picked.body.len());
        change.set.push((header::CONTENT_LENGTH, length));
    }
    PartResponse {
        response: Some(CommonResponse {
            header_mutation: Some(mutation(change)),
            body_mutation: body.map(|body| BodyMutation {
                mutation: Some(whole(body)),
            }),
            // the route may depend on the endpoint
            clear_route_cache: true,
        }),
    }
}

/// A message that also names the endpoints in its metadata.
pub(crate) fn with_endpoints(picked: &Picked, response: Reply) -> ProcessingResponse {
    let endpoints = Kind::Text(picked.endpoints.join(","));
    let fields = Struct::of(ENDPOINT, endpoints);
    ProcessingResponse {
        dynamic_metadata: Some(Struct::of(NAMESPACE, Kind::Fields(fields))),
        response: Some(response),
    }
}

/// Splits a body into chunks, each in a message made by `wrap`. If `end` is set, the last chunk is
/// marked as the end of the body. An empty body gives no chunk, unless it is the end.
pub(crate) fn pieces(
    mut body: Bytes,
    end: bool,
    wrap: fn(PartResponse) -> Reply,
) -> impl Iterator<Item = ProcessingResponse> {
    let mut over = body.is_empty() && !end;
    std::iter::from_fn(move || {
        if over {
            return None;
        }
        let piece = body.split_to(body.len().min(CHUNK));
        over = body.is_empty();
        let streamed = HttpBody {
            body: piece,
            end_of_stream: over && end,
        };
        let response = CommonResponse {
            body_mutation: Some(BodyMutation {
                mutation: Some(Mutation::Streamed(streamed)),
            }),
            ..CommonResponse::default()
        };
        let response = Some(response);
        Some(plain(wrap(PartResponse { response })))
    })
}

/// A message that makes Envoy respond to the client itself, without calling an endpoint.
pub(crate) fn refused(refusal: Refusal) -> ProcessingResponse {
    let change = Change {
        set: refusal.headers,
        remove: Vec::new(),
    };
    plain(Reply::Immediate(ImmediateResponse {
        status: Some(HttpStatus {
            code: i32::from(refusal.status),
        }),
        headers: Some(mutation(change)),
        body: refusal.body,
        details: refusal.reason.to_owned(),
    }))
}

fn whole(body: Bytes) -> Mutation {
    match body.is_empty() {
        true => Mutation::Clear(true),
        false => Mutation::Body(body),
    }
}

fn mutation(change: Change) -> HeaderMutation {
    let set = change.set.into_iter().map(|(name, value)| {
        let header = HeaderValue {
            key: name.as_str().to_owned(),
            value: String::new(),
            raw_value: Bytes::copy_from_slice(value.as_bytes()),
        };
        HeaderValueOption {
            header: Some(header),
            append_action: OVERWRITE,
        }
    });
    let remove = change.remove.iter().map(|name| name.as_str().to_owned());
    HeaderMutation {
        set_headers: set.collect(),
        remove_headers: remove.collect(),
    }
}
