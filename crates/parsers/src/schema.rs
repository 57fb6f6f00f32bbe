/// A tool that may be called, as far as reading calls needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSchema {
    pub name: String,
    /// A JSON schema of an object.
    pub parameters: Option<serde_json::Map<String, serde_json::Value>>,
}
