use std::path::Path;
use std::sync::Arc;

use penstock_formats::{Checkpoint, Metadata};
use serde_json::{Map, Value};

use crate::chat::TemplateSources;
use crate::{ChatTemplate, SpecialTokens, TextError, Tokenizer, gguf, hf};

/// Everything about one model that concerns text.
#[derive(Debug)]
pub struct TextModel {
    pub tokenizer: Arc<Tokenizer>,
    pub template: Option<ChatTemplate>,
}

impl TextModel {
    /// Opens a GGUF file, or a Hugging Face directory with tokenizer.json. `chat_template_override`
    /// is a file whose template replaces the model's own.
    ///
    /// # Errors
    /// A file that is missing or malformed, a tokenizer kind that is not known, a template that
    /// does not parse.
    pub fn open(path: &Path, chat_template_override: Option<&Path>) -> Result<Self, TextError> {
        if path.is_dir() {
            let directory = hf::open(path)?;
            let sources = chosen_sources(directory.templates, chat_template_override)?;
            return Self::join(directory.tokenizer, sources, directory.special_tokens);
        }
        let checkpoint =
            Checkpoint::open(path).map_err(|error| TextError::bad_file(path, error))?;
        let header = checkpoint.gguf().ok_or_else(|| TextError::NoTokenizer {
            path: path.to_owned(),
        })?;
        Self::from_gguf(&header.metadata, chat_template_override)
    }

    /// The same from metadata of a GGUF file that is already open.
    pub fn from_gguf(
        metadata: &Metadata,
        chat_template_override: Option<&Path>,
    ) -> Result<Self, TextError> {
        let tokenizer = gguf::tokenizer(metadata)?;
        let sources = chosen_sources(gguf::templates(metadata)?, chat_template_override)?;
        Self::join(tokenizer, sources, gguf::special_tokens(metadata)?)
    }

    fn join(
        tokenizer: Tokenizer,
        sources: Option<TemplateSources>,
        special_tokens: SpecialTokens,
    ) -> Result<Self, TextError> {
        let template = sources
            .map(|sources| ChatTemplate::new(sources, special_tokens))
            .transpose()?;
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            template,
        })
    }

    /// The prompt text of a conversation; see [`ChatTemplate::render`].
    pub fn render_chat(
        &self,
        messages: &Value,
        add_generation_prompt: bool,
        tools: Option<&Value>,
        kwargs: &Map<String, Value>,
    ) -> Result<String, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoChatTemplate)?;
        template.render(messages, add_generation_prompt, tools, kwargs)
    }

    /// The prompt ids of a conversation. No special tokens are added: the template writes them.
    pub fn encode_chat(
        &self,
        messages: &Value,
        add_generation_prompt: bool,
        tools: Option<&Value>,
        kwargs: &Map<String, Value>,
    ) -> Result<Vec<u32>, TextError> {
        let text = self.render_chat(messages, add_generation_prompt, tools, kwargs)?;
        self.tokenizer.encode(&text, false)
    }
}

fn chosen_sources(
    own: Option<TemplateSources>,
    replacement: Option<&Path>,
) -> Result<Option<TemplateSources>, TextError> {
    let Some(path) = replacement else {
        return Ok(own);
    };
    let read = std::fs::read_to_string(path);
    let default = read.map_err(|source| TextError::Read {
        path: path.to_owned(),
        source,
    })?;
    Ok(Some(TemplateSources {
        default,
        with_tools: None,
    }))
}
