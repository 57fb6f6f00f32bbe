use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use penstock_checkpoint::{Checkpoint, Metadata};
use serde_json::{Map, Value};

use crate::chat::TemplateSources;
use crate::guard::{Guard, Rendered};
use crate::tokenizer::{Encoder, Entry, Roles, Surface, Tokenizer};
use crate::{ChatTemplate, Elsewhere, SpecialTokens, TextError, gguf, hf};

/// Chat template for the synthetic vocabulary: roles and contents.
const WORDS_TEMPLATE: &str = "{% for m in messages %}{{ m.role }} {{ m.content or '' }} \
    {% endfor %}{% if add_generation_prompt %}assistant{% endif %}";

/// Input of the chat template.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    pub messages: &'a Value,
    pub add_generation_prompt: bool,
    pub tools: Option<&'a Value>,
    /// Continue the last message: the prompt ends with it.
    pub continue_final: bool,
    /// Source of a template that replaces the model's own.
    pub template: Option<&'a str>,
    /// Additional variables of the template.
    pub template_kwargs: Option<&'a Map<String, Value>>,
}

impl<'a> Conversation<'a> {
    /// A conversation with the given messages and no options, in which the model answers next.
    pub fn of(messages: &'a Value) -> Self {
        Self {
            messages,
            add_generation_prompt: true,
            tools: None,
            continue_final: false,
            template: None,
            template_kwargs: None,
        }
    }
}

/// All text processing of one model.
#[derive(Debug)]
pub struct TextModel {
    pub tokenizer: Arc<Tokenizer>,
    pub template: Option<ChatTemplate>,
    pub special_tokens: SpecialTokens,
    /// Runs templates from requests; `None` = run them in this process.
    pub elsewhere: Option<Elsewhere>,
    guard: Guard,
}

impl TextModel {
    /// Opens a GGUF file, or a Hugging Face directory with tokenizer.json. The template in the file
    /// `chat_template_override` replaces the model's own.
    ///
    /// # Errors
    /// A file is missing or malformed, the tokenizer kind is unknown, or a template does not parse.
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

    /// Like [`Self::open`], from the metadata of an open GGUF file.
    pub fn from_gguf(
        metadata: &Metadata,
        chat_template_override: Option<&Path>,
    ) -> Result<Self, TextError> {
        let tokenizer = gguf::tokenizer(metadata)?;
        let sources = chosen_sources(gguf::templates(metadata)?, chat_template_override)?;
        Self::join(tokenizer, sources, gguf::special_tokens(metadata)?)
    }

    /// Ids of the end tokens in GGUF metadata, found by their text, such as `<end_of_turn>`: many
    /// files declare none in a key.
    pub fn end_tokens(metadata: &Metadata) -> Vec<u32> {
        gguf::end_tokens(metadata)
    }

    /// Text model without files: a synthetic vocabulary of `size` words, at least 2, separated by
    /// spaces. `t17` is token 17; any other word is hashed to an id above 0; token 0 is the end
    /// token.
    ///
    /// # Errors
    /// Never depends on the input: the template is constant.
    pub fn of_words(size: u32) -> Result<Self, TextError> {
        let entries = (0..size as usize).map(|id| Entry {
            text: Cow::Owned(format!(" t{id}")),
            added: true,
            special: id == 0,
        });
        let roles = Roles {
            eos: Some(0),
            ..Roles::default()
        };
        let tokenizer = Tokenizer::assemble(Encoder::Words, Surface::ByteLevel, entries, roles);
        let sources = TemplateSources {
            default: WORDS_TEMPLATE.to_owned(),
            with_tools: None,
        };
        Self::join(tokenizer, Some(sources), SpecialTokens::new())
    }

    fn join(
        tokenizer: Tokenizer,
        sources: Option<TemplateSources>,
        special_tokens: SpecialTokens,
    ) -> Result<Self, TextError> {
        let template = sources
            .map(|sources| ChatTemplate::new(sources, special_tokens.clone()))
            .transpose()?;
        Ok(Self {
            guard: Guard::new(&tokenizer)?,
            tokenizer: Arc::new(tokenizer),
            template,
            special_tokens,
            elsewhere: None,
        })
    }

    /// The same model with the chat template `source`.
    ///
    /// # Errors
    /// The template does not parse.
    pub fn with_template(&self, source: &str) -> Result<Self, TextError> {
        Ok(Self {
            tokenizer: self.tokenizer.clone(),
            template: Some(ChatTemplate::parse(source, self.special_tokens.clone())?),
            special_tokens: self.special_tokens.clone(),
            elsewhere: self.elsewhere.clone(),
            guard: Guard::new(&self.tokenizer)?,
        })
    }

    /// Upper bound on the bytes of a text of `tokens` tokens, ignoring normalization and unknown
    /// characters; `None` if one token may represent any text.
    pub fn longest_text(&self, tokens: u32) -> Option<usize> {
        let longest = self.tokenizer.longest_token()?;
        Some(longest.saturating_mul(tokens as usize))
    }

    /// Renders the prompt of a conversation. With `guarded`, required for untrusted messages, a
    /// special token spelled out in a value is encoded as text and not as a control token.
    ///
    /// # Errors
    /// There is no template, or it does not parse; [`ChatTemplate::render`] fails in all forms of
    /// the conversation; the last message has no text to continue; [`TextError::TemplateStart`].
    pub fn render(&self, chat: &Conversation<'_>, guarded: bool) -> Result<Rendered, TextError> {
        let remote = chat.template.zip(self.elsewhere.as_ref());
        let parse = |source| ChatTemplate::parse(source, self.special_tokens.clone());
        let given = chat.template.filter(|_| remote.is_none());
        let given = given.map(parse).transpose()?;
        let template = given.as_ref().or(self.template.as_ref());
        let marked = match chat.continue_final {
            true => Some(Rendered::mark_end(chat.messages)?),
            false => None,
        };
        let messages = marked.as_ref().unwrap_or(chat.messages);
        let print = |messages: &Value, tools: Option<&Value>, kwargs: &Map<String, Value>| {
            let add = chat.add_generation_prompt;
            match remote {
                Some((source, elsewhere)) => {
                    let tokens = &self.special_tokens;
                    elsewhere.render(source, tokens, messages, add, tools, kwargs)
                }
                None => {
                    let template = template.ok_or(TextError::NoChatTemplate)?;
                    template.render_adapted(messages, add, tools, kwargs)
                }
            }
        };
        let (none, mut hidden) = (Map::new(), Vec::new());
        let kwargs = chat.template_kwargs.unwrap_or(&none);
        let text = if guarded {
            let messages = self.guard.hide(messages, &mut hidden);
            let tools = chat.tools.map(|tools| self.guard.hide(tools, &mut hidden));
            let kwargs = self.guard.hide_map(kwargs, &mut hidden);
            print(&messages, tools.as_deref(), &kwargs)?
        } else {
            print(messages, chat.tools, kwargs)?
        };
        let prompt = Rendered::new(text, hidden);
        match chat.continue_final {
            true => prompt.cut(),
            false => Ok(prompt),
        }
    }

    /// The prompt ids of a rendered conversation. Special tokens come from the template only.
    pub fn encode_rendered(&self, prompt: &Rendered) -> Result<Vec<u32>, TextError> {
        self.guard.encode_prompt(&self.tokenizer, prompt)
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
