//! Restores the client's model name in responses.

/// A replacement.
#[derive(Debug)]
pub(crate) struct Rename {
    from: String,
    /// A JSON string.
    to: Vec<u8>,
}

impl Rename {
    pub(crate) fn new(from: &str, to: &str) -> Self {
        Self {
            from: from.to_owned(),
            to: serde_json::Value::from(to).to_string().into_bytes(),
        }
    }

    /// The replacement for the value of a member `model`, as JSON.
    pub(crate) fn of<'a>(&'a self, value: &'a [u8]) -> &'a [u8] {
        match serde_json::from_slice::<String>(value) {
            Ok(name) if name == self.from => &self.to,
            _ => value,
        }
    }
}
