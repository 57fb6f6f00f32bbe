//! Tokenizer and chat template from a Hugging Face model directory.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::{PostProcessorWrapper, Tokenizer as HfTokenizer};

use crate::caught::caught;
use crate::chat::TemplateSources;
use crate::tokenizer::{AddedIds, Roles, Tokenizer};
use crate::{SpecialTokens, TextError, tiktoken};

/// Directory of named templates.
const NAMED: &str = "additional_chat_templates";
const ROLES: [&str; 4] = ["bos_token", "eos_token", "unk_token", "pad_token"];

/// Tokenizer, and the settings in tokenizer_config.json and related files.
pub(crate) struct Directory {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) special_tokens: SpecialTokens,
    pub(crate) templates: Option<TemplateSources>,
}

pub(crate) fn open(directory: &Path) -> Result<Directory, TextError> {
    let config = read_object(&directory.join("tokenizer_config.json"))?;
    let mut inner = pipeline(directory, &config)?;
    let special_tokens = special_tokens(
        &config,
        &read_object(&directory.join("special_tokens_map.json"))?,
    );
    let id_of = |role: &str| {
        special_tokens
            .get(role)
            .and_then(|text| inner.token_to_id(text))
    };
    let (bos, eos) = (id_of("bos_token"), id_of("eos_token"));
    let rule = llama_rule(&config, bos, eos);
    if rule.is_some() {
        inner.with_post_processor(None::<PostProcessorWrapper>);
    }
    let roles = Roles {
        bos,
        eos,
        added_by_rule: rule.unwrap_or_default(),
    };
    let tokenizer = Tokenizer::from_pipeline(inner, roles)?;
    Ok(Directory {
        tokenizer,
        special_tokens,
        templates: templates(directory, &config)?,
    })
}

fn pipeline(directory: &Path, config: &Map<String, Value>) -> Result<HfTokenizer, TextError> {
    let file = directory.join("tokenizer.json");
    if let Some(bytes) = read_if_present(&file)? {
        let read = caught(|| HfTokenizer::from_bytes(&bytes));
        return read.map_err(|e| TextError::bad_file(&file, e));
    }
    match read_if_present(&directory.join(tiktoken::FILE))? {
        Some(ranks) => tiktoken::pipeline(directory, &ranks, config),
        None => Err(TextError::NoTokenizer {
            path: directory.to_owned(),
        }),
    }
}

/// transformers' LlamaTokenizer classes replace the post-processor of tokenizer.json by the flags
/// in tokenizer_config.json (defaults: BOS on, EOS off); other classes keep it.
fn llama_rule(config: &Map<String, Value>, bos: Option<u32>, eos: Option<u32>) -> Option<AddedIds> {
    let class = config.get("tokenizer_class")?.as_str()?;
    if !class.starts_with("LlamaTokenizer") {
        return None;
    }
    let flag =
        |name: &str, default: bool| config.get(name).and_then(Value::as_bool).unwrap_or(default);
    let before = bos.filter(|_| flag("add_bos_token", true));
    let after = eos.filter(|_| flag("add_eos_token", false));
    Some(AddedIds { before, after })
}

/// Texts of tokens with a role: from tokenizer_config.json, then from special_tokens_map.json.
fn special_tokens(config: &Map<String, Value>, map: &Map<String, Value>) -> SpecialTokens {
    let text_of = |role: &str| {
        let stated = [config, map]
            .into_iter()
            .find_map(|source| source.get(role).filter(|value| !value.is_null()))?;
        stated
            .as_str()
            .or_else(|| stated.get("content")?.as_str())
            .map(str::to_owned)
    };
    ROLES
        .into_iter()
        .filter_map(|role| Some((role.to_owned(), text_of(role)?)))
        .collect()
}

/// `chat_template` in tokenizer_config.json: one template, or a list of named ones.
#[derive(Deserialize)]
#[serde(untagged)]
enum ConfigTemplate {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

/// Templates in separate files, as transformers has written them since 2025: the default one and a
/// directory of named ones. As in transformers, they take precedence over the configuration's.
fn templates(
    directory: &Path,
    config: &Map<String, Value>,
) -> Result<Option<TemplateSources>, TextError> {
    let read = |file: &Path| -> Result<Option<String>, TextError> {
        let bytes = read_if_present(file)?;
        let text = bytes.map(String::from_utf8).transpose();
        text.map_err(|error| TextError::bad_file(file, error))
    };
    let named = |name: &str| read(&directory.join(NAMED).join(format!("{name}.jinja")));
    let default = match read(&directory.join("chat_template.jinja"))? {
        Some(default) => Some(default),
        None => named("default")?,
    };
    if let Some(default) = default {
        return Ok(Some(TemplateSources {
            default,
            with_tools: named("tool_use")?,
        }));
    }
    let with_tools = named("tool_use")?;
    let Some(mut stated) = stated(directory, config)? else {
        return Ok(None);
    };
    stated.with_tools = with_tools.or(stated.with_tools);
    Ok(Some(stated))
}

/// Templates in tokenizer_config.json.
fn stated(
    directory: &Path,
    config: &Map<String, Value>,
) -> Result<Option<TemplateSources>, TextError> {
    let Some(stated) = config.get("chat_template").filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let parsed = ConfigTemplate::deserialize(stated).map_err(|_| {
        let reason = "chat_template is neither a string nor a list of {name, template}";
        TextError::bad_file(&directory.join("tokenizer_config.json"), reason)
    })?;
    Ok(match parsed {
        ConfigTemplate::One(default) => Some(TemplateSources {
            default,
            with_tools: None,
        }),
        ConfigTemplate::Named(list) => {
            let named = |name: &str| {
                list.iter()
                    .find(|entry| entry.name == name)
                    .map(|e| e.template.clone())
            };
            named("default").map(|default| TemplateSources {
                default,
                with_tools: named("tool_use"),
            })
        }
    })
}

fn read_object(file: &Path) -> Result<Map<String, Value>, TextError> {
    let Some(bytes) = read_if_present(file)? else {
        return Ok(Map::new());
    };
    serde_json::from_slice(&bytes).map_err(|error| TextError::bad_file(file, error))
}

fn read_if_present(file: &Path) -> Result<Option<Vec<u8>>, TextError> {
    match std::fs::read(file) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Read {
            path: file.to_owned(),
            source,
        }),
    }
}
