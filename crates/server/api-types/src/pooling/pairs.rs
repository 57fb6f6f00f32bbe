//! `POST /v1/score` and `POST /v1/rerank`: pairs of texts.

use super::{MAX_INPUTS, Pooled, check_count, texts};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::neutral;

/// A validated request for scores.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreRequest {
    pub pooled: Pooled,
    /// One text, or the same number of texts as `right`.
    pub left: Vec<String>,
    pub right: Vec<String>,
    /// Convert the scores of a classification head to numbers between 0 and 1.
    pub activation: bool,
}

/// A validated request to order documents by their similarity to a query.
#[derive(Debug, Clone, PartialEq)]
pub struct RerankRequest {
    pub pooled: Pooled,
    pub query: String,
    pub documents: Vec<String>,
    /// Maximum number of results; not above the number of documents.
    pub top_n: usize,
    /// Results include their documents.
    pub return_documents: bool,
    pub activation: bool,
}

/// Names of the fields for the two sides of a pair, as in vLLM.
const LEFT: [&str; 3] = ["text_1", "data_1", "queries"];
const RIGHT: [&str; 3] = ["text_2", "data_2", "documents"];

impl ScoreRequest {
    /// Reads and validates a request body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let (name, left) = named_side(&mut fields, LEFT)?;
        let right = take_side(&mut fields, RIGHT)?;
        if left.len() != 1 && left.len() != right.len() {
            let (one, other) = (left.len(), right.len());
            let message =
                format!("{one} texts cannot be paired with {other}: send one, or {other}.");
            return Err(ApiError::invalid(name, message));
        }
        let request = Self {
            left,
            right,
            activation: take_activation(&mut fields)?,
            pooled: Pooled::take(&mut fields)?,
        };
        neutral::check_pooling(&fields)?;
        Ok(request)
    }
}

impl RerankRequest {
    /// Reads and validates a request body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let query: Option<String> = fields.take("query")?;
        let query = query.ok_or_else(|| ApiError::invalid("query", "query is required."))?;
        let documents = fields.take_raw("documents");
        let missing = || ApiError::invalid("documents", "documents is required.");
        let documents = texts("documents", documents.ok_or_else(missing)?)?;
        let top_n = fields.integer("top_n", 0..=i64::from(i32::MAX))?;
        let top_n = top_n.filter(|n| *n > 0).map_or(MAX_INPUTS, |n| n as usize);
        let request = Self {
            query,
            top_n: top_n.min(documents.len()),
            documents,
            return_documents: fields.flag("return_documents", true)?,
            activation: take_activation(&mut fields)?,
            pooled: Pooled::take(&mut fields)?,
        };
        neutral::check_pooling(&fields)?;
        Ok(request)
    }
}

fn take_activation(fields: &mut Fields<'_>) -> Result<bool, ApiError> {
    let older = fields.flag("activation", true)?;
    fields.flag("use_activation", older)
}

fn take_side(fields: &mut Fields<'_>, names: [&'static str; 3]) -> Result<Vec<String>, ApiError> {
    named_side(fields, names).map(|(_, texts)| texts)
}

/// The texts of one side, and the name of the field that contained them.
fn named_side(
    fields: &mut Fields<'_>,
    names: [&'static str; 3],
) -> Result<(&'static str, Vec<String>), ApiError> {
    let mut found = None;
    for name in names {
        match (fields.take_raw(name), found) {
            (Some(_), Some((other, _))) => {
                let message = format!("{name} and {other} are the same: leave one out.");
                return Err(ApiError::invalid(name, message));
            }
            (Some(raw), None) => found = Some((name, raw)),
            (None, _) => {}
        }
    }
    let missing = || ApiError::invalid(names[0], format!("{} is required.", names[0]));
    let (name, raw) = found.ok_or_else(missing)?;
    let texts = texts(name, raw)?;
    check_count(name, texts.len())?;
    Ok((name, texts))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn scores_are_of_one_to_many_or_of_pairs() {
        let parse = |body: &str| ScoreRequest::parse(body.as_bytes());
        let one = parse(r#"{"text_1": "a", "text_2": ["b", "c"]}"#).unwrap();
        assert_eq!((one.left.len(), one.right.len()), (1, 2));
        let other = parse(r#"{"queries": ["a", "b"], "documents": ["c", {"text": "d"}]}"#);
        assert_eq!(other.unwrap().right, ["c", "d"]);
        for (body, param) in [
            (r#"{"text_2": "a"}"#, "text_1"),
            (r#"{"text_1": "a"}"#, "text_2"),
            (r#"{"text_1": ["a", "b"], "text_2": "c"}"#, "text_1"),
            (r#"{"text_1": "a", "data_1": "b", "text_2": "c"}"#, "data_1"),
            (r#"{"text_1": "a", "text_2": []}"#, "text_2"),
            (r#"{"text_1": "a", "text_2": [{"image": "b"}]}"#, "text_2"),
        ] {
            let error = parse(body).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}: {error}");
        }
    }

    #[test]
    fn a_rerank_is_cut_at_top_n() {
        let parse = |body: &str| RerankRequest::parse(body.as_bytes());
        let all = parse(r#"{"query": "q", "documents": ["a", "b"], "top_n": 0}"#).unwrap();
        assert_eq!((all.top_n, all.return_documents), (2, true));
        let one = parse(r#"{"query": "q", "documents": ["a", "b"], "top_n": 1}"#).unwrap();
        assert_eq!(one.top_n, 1);
        for (body, param) in [
            (r#"{"documents": ["a"]}"#, "query"),
            (r#"{"query": "q"}"#, "documents"),
            (
                r#"{"query": "q", "documents": ["a"], "max_tokens_per_doc": 5}"#,
                "max_tokens_per_doc",
            ),
        ] {
            let error = parse(body).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}: {error}");
        }
    }
}
