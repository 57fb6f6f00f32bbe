//! JSON format of lists and watch events.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::api_error::ApiError;

/// A page of a list.
#[derive(Deserialize)]
pub(crate) struct Page<'a> {
    pub(crate) metadata: ListMeta,
    /// `null` if the page is empty.
    #[serde(borrow, default)]
    pub(crate) items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListMeta {
    #[serde(default)]
    pub(crate) resource_version: String,
    /// Token with which the next page is requested; empty on the last page.
    #[serde(default)]
    pub(crate) r#continue: String,
}

/// Members that all objects have.
#[derive(Deserialize)]
pub(crate) struct Head {
    pub(crate) metadata: ObjectMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ObjectMeta {
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) resource_version: String,
}

/// One event of a watch, a line of JSON.
pub(crate) enum Event<'a> {
    /// Added or modified: the new state of the object.
    Is(&'a RawValue),
    Deleted(&'a RawValue),
    /// An object with only a newer resource version, from which a watch can continue.
    Bookmark(&'a RawValue),
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

impl<'a> Event<'a> {
    /// # Errors
    /// [`ApiError`]: the line is malformed, or is an event that ends the watch.
    pub(crate) fn parse(line: &'a [u8]) -> Result<Self, ApiError> {
        let line: Line<'a> = serde_json::from_slice(line).map_err(malformed)?;
        match &*line.kind {
            "ADDED" | "MODIFIED" => Ok(Self::Is(line.object)),
            "DELETED" => Ok(Self::Deleted(line.object)),
            "BOOKMARK" => Ok(Self::Bookmark(line.object)),
            "ERROR" => Err(refused(0, line.object.get().as_bytes())),
            other => {
                let start: String = other.chars().take(40).collect();
                Err(ApiError::Malformed(format!("an event {start:?}")))
            }
        }
    }
}

pub(crate) fn malformed(error: serde_json::Error) -> ApiError {
    ApiError::Malformed(error.to_string())
}

/// An error from its response body, which is a `Status` if the API server itself sent it. `status`
/// is the HTTP status, 0 for an event.
pub(crate) fn refused(status: u16, body: &[u8]) -> ApiError {
    let said: Option<Status> = serde_json::from_slice(body).ok();
    let said = said.unwrap_or_else(|| Status {
        code: status,
        message: String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned(),
    });
    ApiError::Refused {
        status: if status == 0 { said.code } else { status },
        message: said.message.chars().take(500).collect(),
    }
}
