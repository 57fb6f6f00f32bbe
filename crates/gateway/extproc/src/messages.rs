//! The protocol's messages, as far as an endpoint picker needs them. Field numbers are those of
//! Envoy's `external_processor.proto`, `base.proto` and `processing_mode.proto`, and of protobuf's
//! `struct.proto`.
//!
//! They are declared by hand, because a crate with all of Envoy's types takes longer to compile
//! than the HTTP stack. Fields that are not declared here are skipped when a message is read.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

/// How Envoy shows a body to the picker: not at all, in pieces, whole, or there and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(crate) enum BodyMode {
    None = 0,
    Streamed = 1,
    Buffered = 2,
    BufferedPartial = 3,
    FullDuplexStreamed = 4,
    Grpc = 5,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessingRequest {
    #[prost(message, optional, tag = "8")]
    pub(crate) metadata_context: Option<Metadata>,
    #[prost(message, optional, tag = "11")]
    pub(crate) protocol_config: Option<ProtocolConfiguration>,
    #[prost(oneof = "Part", tags = "2, 3, 4, 5, 6, 7")]
    pub(crate) request: Option<Part>,
}

/// The part of a request or response that a message from Envoy shows.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Part {
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
    #[prost(message, tag = "6")]
    RequestTrailers(HttpTrailers),
    #[prost(message, tag = "7")]
    ResponseTrailers(HttpTrailers),
}

/// The body modes; Envoy sends them in the first message of a stream.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct ProtocolConfiguration {
    #[prost(enumeration = "BodyMode", tag = "1")]
    pub(crate) request_body_mode: i32,
    #[prost(enumeration = "BodyMode", tag = "2")]
    pub(crate) response_body_mode: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpHeaders {
    #[prost(message, optional, tag = "1")]
    pub(crate) headers: Option<HeaderList>,
    #[prost(bool, tag = "3")]
    pub(crate) end_of_stream: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpBody {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) body: Bytes,
    #[prost(bool, tag = "2")]
    pub(crate) end_of_stream: bool,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct HttpTrailers {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessingResponse {
    #[prost(message, optional, tag = "8")]
    pub(crate) dynamic_metadata: Option<Struct>,
    #[prost(oneof = "Reply", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub(crate) response: Option<Reply>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Reply {
    #[prost(message, tag = "1")]
    RequestHeaders(PartResponse),
    #[prost(message, tag = "2")]
    ResponseHeaders(PartResponse),
    #[prost(message, tag = "3")]
    RequestBody(PartResponse),
    #[prost(message, tag = "4")]
    ResponseBody(PartResponse),
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersResponse),
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersResponse),
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

/// Envoy's `HeadersResponse` and `BodyResponse`, which have the same fields.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PartResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) response: Option<CommonResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CommonResponse {
    #[prost(message, optional, tag = "2")]
    pub(crate) header_mutation: Option<HeaderMutation>,
    #[prost(message, optional, tag = "3")]
    pub(crate) body_mutation: Option<BodyMutation>,
    #[prost(bool, tag = "5")]
    pub(crate) clear_route_cache: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TrailersResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header_mutation: Option<HeaderMutation>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImmediateResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<HttpStatus>,
    #[prost(message, optional, tag = "2")]
    pub(crate) headers: Option<HeaderMutation>,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) body: Bytes,
    /// Reason that Envoy writes to its access log.
    #[prost(string, tag = "5")]
    pub(crate) details: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderMutation {
    #[prost(message, repeated, tag = "1")]
    pub(crate) set_headers: Vec<HeaderValueOption>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) remove_headers: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<HeaderValue>,
    #[prost(int32, tag = "3")]
    pub(crate) append_action: i32,
}

/// Value of `append_action` that overwrites existing values of a header.
pub(crate) const OVERWRITE: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderList {
    #[prost(message, repeated, tag = "1")]
    pub(crate) headers: Vec<HeaderValue>,
}

/// A header. Envoy sets one of `value` and `raw_value`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) raw_value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct BodyMutation {
    #[prost(oneof = "Mutation", tags = "1, 2, 3")]
    pub(crate) mutation: Option<Mutation>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Mutation {
    #[prost(bytes = "bytes", tag = "1")]
    Body(Bytes),
    #[prost(bool, tag = "2")]
    Clear(bool),
    /// Envoy's `StreamedBodyResponse`, which has the same fields.
    #[prost(message, tag = "3")]
    Streamed(HttpBody),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metadata {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) filter_metadata: BTreeMap<String, Struct>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Struct {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) fields: BTreeMap<String, Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Value {
    #[prost(oneof = "Kind", tags = "3, 5, 6")]
    pub(crate) kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Kind {
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(message, tag = "5")]
    Fields(Struct),
    #[prost(message, tag = "6")]
    List(ValueList),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ValueList {
    #[prost(message, repeated, tag = "1")]
    pub(crate) values: Vec<Value>,
}

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(crate) service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    pub(crate) status: i32,
}

impl Metadata {
    /// The value for a name within a namespace of the metadata.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<&Kind> {
        let fields = &self.filter_metadata.get(namespace)?.fields;
        fields.get(name)?.kind.as_ref()
    }
}

impl Struct {
    pub(crate) fn of(name: &str, kind: Kind) -> Self {
        let value = Value { kind: Some(kind) };
        Self {
            fields: BTreeMap::from([(name.to_owned(), value)]),
        }
    }
}
