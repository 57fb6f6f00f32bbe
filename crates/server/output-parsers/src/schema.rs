/// A callable tool, as required by the parsers.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSchema {
    pub name: String,
    /// JSON schema of an object.
    pub parameters: Option<serde_json::Map<String, serde_json::Value>>,
    /// Enforce the schema even if calls are optional.
    pub strict: bool,
}
