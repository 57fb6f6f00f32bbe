//! Replaces the model's name in responses by the name that the client used.

/// A model's name at the replica, and the client's name for it.
#[derive(Debug)]
pub(crate) struct Rename {
    from: String,
    /// The client's name, as a JSON string.
    to: Vec<u8>,
}

impl Rename {
    pub(crate) fn new(from: &str, to: &str) -> Self {
        Self {
            from: from.to_owned(),
            to: serde_json::Value::from(to).to_string().into_bytes(),
        }
    }

    /// The value for a member `model` in place of `value`, both as JSON.
    pub(crate) fn of<'a>(&'a self, value: &'a [u8]) -> &'a [u8] {
        match serde_json::from_slice::<String>(value) {
            Ok(name) if name == self.from => &self.to,
            _ => value,
        }
    }
}
