//! Grammars that constrain an output, as plain data. The API server writes them,
//! `penstock_structured_output` compiles them, and all other code treats them as opaque.

use super::FrameError;
use super::fields::Fields;
use super::writer::FrameWriter;

/// Upper bound on the text of a grammar, in bytes.
pub const MAX_GRAMMAR_BYTES: usize = 256 << 10;
/// Upper bound on the total size in bytes of the encoded grammars of a step plan. One grammar of
/// maximum size fits.
pub const MAX_PLAN_GRAMMAR_BYTES: usize = MAX_GRAMMAR_BYTES + 1;

const NAME: &str = "GRAMMAR";
const SIZE: &str = "1 to 262144 bytes of UTF-8";
const KINDS: &str = "1 to 5";

/// Grammar that an output must match, from its first byte to its end token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Grammar {
    pub kind: GrammarKind,
    /// 1 to [`MAX_GRAMMAR_BYTES`] bytes, in the format of `kind`.
    pub text: String,
}

/// Format of a grammar's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GrammarKind {
    /// A JSON Schema; `{"type": "object"}` is any object.
    JsonSchema = 1,
    /// A regular expression in the syntax of Rust's `regex`, matched against the whole output.
    Regex = 2,
    /// A JSON list of strings; the output is one of them.
    Choice = 3,
    /// A context-free grammar: llguidance's Lark, or GBNF (lines with `::=`).
    Syntax = 4,
    /// A structural tag in JSON, either vLLM's `{"structures", "triggers"}` or xgrammar's
    /// `{"type": "structural_tag", "format"}`: free text with constrained parts.
    StructuralTag = 5,
}

impl GrammarKind {
    const ALL: [Self; 5] = [
        Self::JsonSchema,
        Self::Regex,
        Self::Choice,
        Self::Syntax,
        Self::StructuralTag,
    ];

    /// The kind with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }
}

impl Grammar {
    /// A grammar of any JSON object.
    pub fn json_object() -> Self {
        Self::new(GrammarKind::JsonSchema, r#"{"type":"object"}"#)
    }

    pub fn new(kind: GrammarKind, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind, text }
    }

    /// Encodes the grammar; an error if its text is empty or too long.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        let mut out = Vec::with_capacity(self.text.len() + 1);
        FrameWriter::message(&mut out, NAME, |w| self.write(w))?;
        Ok(out)
    }

    /// Decodes the bytes of [`Self::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        Fields::frame(bytes, NAME, Self::read)
    }

    /// `None` for empty bytes.
    pub(super) fn read_optional(f: &mut Fields<'_>) -> Result<Option<Self>, FrameError> {
        match f.is_empty() {
            true => Ok(None),
            false => Self::read(f).map(Some),
        }
    }

    fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        let code = f.u8("kind")?;
        let kind = GrammarKind::from_code(code);
        let kind = kind.ok_or_else(|| f.refuse("kind", 1, code, KINDS))?;
        let text = f.rest();
        let valid = std::str::from_utf8(text).ok().filter(|t| fits(t));
        match valid {
            Some(text) => Ok(Self::new(kind, text)),
            None => Err(f.refuse("text", text.len(), shown(text), SIZE)),
        }
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) -> Result<(), FrameError> {
        if !fits(&self.text) {
            return Err(w.refuse("text", shown(self.text.as_bytes()), SIZE));
        }
        w.u8(self.kind as u8);
        w.array(self.text.as_bytes());
        Ok(())
    }
}

fn fits(text: &str) -> bool {
    (1..=MAX_GRAMMAR_BYTES).contains(&text.len())
}

fn shown(text: &[u8]) -> String {
    format!("{} bytes", text.len())
}
