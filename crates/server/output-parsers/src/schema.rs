/// A callable tool, with the parts that the parsers need.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSchema {
    pub name: String,
    /// A JSON schema of an object.
    pub parameters: Option<serde_json::Map<String, serde_json::Value>>,
    /// Enforce the schema even if calls are optional.
    pub strict: bool,
}
