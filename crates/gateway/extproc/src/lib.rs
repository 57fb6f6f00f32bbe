//! Envoy's external processing protocol (`envoy.service.ext_proc.v3`) for an endpoint picker: its
//! messages, their order in every body mode, and gRPC. A [`Picker`] makes the decisions.
//!
//! The request path, in reading order: [`grpc`], [`session`], the [`Call`] of the picker,
//! [`replies`].

mod frames;
mod grpc;
mod heads;
mod health;
mod messages;
mod modes;
mod picker;
mod replies;
mod session;
mod status;

pub use grpc::router;
pub use picker::{
    AnswerHead, BodyVisibility, Call, Change, Excess, Head, Picked, Picker, Refusal, Room,
};
