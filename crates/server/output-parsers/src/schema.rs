/// A tool that may be called, as far as reading calls needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSchema {
    pub name: String,
    /// A JSON schema of an object.
    pub parameters: Option<serde_json::Map<String, serde_json::Value>>,
    /// Its arguments follow the schema in any case, not only where calls are demanded.
    pub strict: bool,
}
