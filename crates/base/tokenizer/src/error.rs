use std::path::{Path, PathBuf};

use penstock_checkpoint::one_line;

/// Errors of a model's text files, templates, and conversions between text and token ids.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },

    #[error("{} is not usable: {reason}", path.display())]
    BadFile { path: PathBuf, reason: String },

    #[error(
        "no tokenizer in {}: expected a GGUF file, or a directory with tokenizer.json (convert a \
         slow tokenizer with transformers' save_pretrained) or Kimi-K2's tiktoken.model",
        path.display()
    )]
    NoTokenizer { path: PathBuf },

    #[error("GGUF metadata key {key}: {reason}")]
    BadMetadata { key: &'static str, reason: String },

    #[error(
        "GGUF tokenizer model \"{name}\" (tokenizer.ggml.model) is not supported; supported: gpt2 \
         (byte-level BPE), llama (SentencePiece BPE)"
    )]
    UnknownTokenizerModel { name: String },

    #[error(
        "GGUF pre-tokenizer \"{name}\" (tokenizer.ggml.pre) is not known, and a guess would change \
         token ids silently; known: {known}. Use the model's Hugging Face directory with \
         tokenizer.json instead"
    )]
    UnknownPreTokenizer { name: String, known: String },

    #[error("tokenizer cannot be built: {reason}")]
    Build { reason: String },

    #[error("text cannot be tokenized: {reason}")]
    Encode { reason: String },

    #[error(
        "the model has no chat template; pass one with --chat-template, or send a plain prompt to \
         /v1/completions"
    )]
    NoChatTemplate,

    #[error("chat template does not parse: {reason}")]
    TemplateSyntax { reason: String },

    /// The template refused the conversation with `raise_exception`; the message is the template's.
    #[error("{message}")]
    TemplateRaised { message: String },

    #[error("chat template failed: {reason}")]
    TemplateRender { reason: String },

    #[error("chat template was stopped: {limit}")]
    TemplateLimit { limit: String },

    /// A transient failure of the system, not of the template.
    #[error("the process for the request's chat template cannot start: {0}")]
    TemplateStart(std::io::Error),

    #[error("messages[{index}]: {reason}")]
    BadMessage { index: usize, reason: String },

    #[error("messages: {reason}")]
    BadMessages { reason: String },
}

impl TextError {
    /// Whether the template refused the conversation.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::TemplateRaised { .. } | Self::TemplateRender { .. }
        )
    }

    pub(crate) fn bad_file(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self::BadFile {
            path: path.to_owned(),
            reason: one_line(&reason.to_string()),
        }
    }

    pub(crate) fn metadata(key: &'static str, reason: impl Into<String>) -> Self {
        Self::BadMetadata {
            key,
            reason: one_line(&reason.into()),
        }
    }

    pub(crate) fn build(reason: impl std::fmt::Display) -> Self {
        Self::Build {
            reason: one_line(&reason.to_string()),
        }
    }

    pub(crate) fn encode(reason: impl std::fmt::Display) -> Self {
        Self::Encode {
            reason: one_line(&reason.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_file_do_not_break_the_line_of_an_error() {
        let words = "a\nb\u{1b}".repeat(1 << 16);
        for error in [
            TextError::bad_file(Path::new("tokenizer.json"), &words),
            TextError::metadata("tokenizer.ggml.tokens", words.as_str()),
            TextError::build(&words),
            TextError::encode(&words),
        ] {
            let message = error.to_string();
            assert!(
                message.len() < 8000 && !message.contains(char::is_control),
                "{message}"
            );
        }
    }
}
