//! The end of a gRPC call: status codes, and the headers that carry them.

use std::fmt::Write;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// gRPC status codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Ok = 0,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    ResourceExhausted = 8,
    Unimplemented = 12,
}

/// The status with which a call ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) code: Code,
    message: String,
}

impl Status {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    pub(crate) fn ok() -> Self {
        Self::new(Code::Ok, "")
    }

    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(STATUS, HeaderValue::from(self.code as i32));
        let text = percent_encoded(&self.message);
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(MESSAGE, value);
        }
        headers
    }
}

/// Percent-encodes a status message, as gRPC requires.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_encoded_for_a_header() {
        let headers = Status::new(Code::NotFound, "no é, 5%").headers();
        assert_eq!(headers["grpc-status"], "5");
        assert_eq!(headers["grpc-message"], "no %C3%A9, 5%25");
    }
}
