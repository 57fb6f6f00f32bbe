//! Trials: a separate process compiles a request's grammar first, because a compilation in this
//! process cannot be interrupted. Grammars with few and small parts need no trial.

use std::sync::Arc;

use penstock_wire::{Grammar, GrammarKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::compiler::{self, Compiler};
use crate::error::GrammarError;
use crate::vocabulary::Vocabulary;

/// Maximum size of a small schema in bytes.
const SMALL_SCHEMA: usize = 16 << 10;
/// Maximum size of a small expression in bytes.
const SMALL_TEXT: usize = 256;
/// Maximum of a count, such as `maxItems` or a repetition in a pattern, in a small schema.
const SMALL_COUNT: u64 = 1_000;
const TOKENS: usize = 256;
/// Outcomes of a trial.
const TRIED: &str = "ended";
const NOT_TRIED: &str = "not compiled";

/// A trial's input. Of the vocabulary it contains the size and the special tokens only; single
/// bytes can replace all other tokens.
#[derive(Serialize, Deserialize)]
struct Job {
    /// Kind and text of each grammar.
    grammars: Vec<(u8, String)>,
    tokens: usize,
    special: Vec<(String, u32)>,
}

/// The job for [`run_trial`] in another process.
///
/// # Errors
/// Never depends on the grammars.
pub fn trial_job(compiler: &Compiler, grammars: &[Grammar]) -> Result<String, GrammarError> {
    let vocabulary = compiler.vocabulary();
    let job = Job {
        grammars: grammars
            .iter()
            .map(|g| (g.kind as u8, g.text.clone()))
            .collect(),
        tokens: vocabulary.eos as usize,
        special: vocabulary.special.clone(),
    };
    serde_json::to_string(&job).map_err(|e| GrammarError::of(&e))
}

/// Compiles the grammars of a job. Invalid grammars are reported later, when they are compiled for
/// use.
///
/// # Errors
/// The text is not a valid job.
pub fn run_trial(job: &str) -> Result<String, GrammarError> {
    let job: Job = serde_json::from_str(job).map_err(|e| GrammarError::of(&e))?;
    let last = job.special.iter().map(|(_, id)| *id as usize + 1).max();
    let mut words = vec![Vec::new(); job.tokens.max(last.unwrap_or(0))];
    for (text, id) in &job.special {
        words[*id as usize] = text.as_bytes().to_vec();
    }
    let mut bytes = (0..TOKENS).map(|byte| vec![byte as u8]);
    let free = words.iter_mut().filter(|word| word.is_empty());
    for (word, byte) in free.zip(&mut bytes) {
        *word = byte;
    }
    words.extend(bytes);
    let vocabulary = Vocabulary::of_tokens(words, job.special)?;
    let vocabulary = Arc::new(vocabulary);
    for (kind, text) in job.grammars {
        let kind = GrammarKind::from_code(kind);
        let kind = kind.ok_or_else(|| GrammarError::invalid("an unknown kind of grammar"))?;
        if compiler::tried(&vocabulary, Grammar::new(kind, text)).is_err() {
            return Ok(NOT_TRIED.to_owned());
        }
    }
    Ok(TRIED.to_owned())
}

/// Converts an outcome of [`run_trial`] to a verdict; `None` means that its process was killed.
///
/// # Errors
/// [`GrammarError::TooLarge`]; [`GrammarError::Busy`] if the grammars were not compiled.
pub fn trial_verdict(outcome: Option<&str>) -> Result<(), GrammarError> {
    match outcome.map(str::trim) {
        Some(TRIED) => Ok(()),
        Some(_) => Err(GrammarError::Busy),
        None => Err(GrammarError::TooLarge),
    }
}

/// Whether a grammar compiles in milliseconds, judged by the kind and size of its parts.
pub fn is_small(grammar: &Grammar) -> bool {
    let text = grammar.text.as_str();
    let value = || serde_json::from_str::<Value>(text).ok();
    match grammar.kind {
        GrammarKind::JsonSchema => {
            text.len() <= SMALL_SCHEMA && value().is_some_and(|s| schema(&s))
        }
        GrammarKind::Regex => pattern(text),
        GrammarKind::Choice => text.len() <= SMALL_SCHEMA,
        GrammarKind::Syntax => expression(text),
        GrammarKind::StructuralTag => {
            text.len() <= 4 * SMALL_SCHEMA && value().is_some_and(|tag| format(&tag))
        }
    }
}

/// A short text without counts, intersections, complements or embedded grammars.
fn expression(text: &str) -> bool {
    text.len() <= SMALL_TEXT && !text.contains(['{', '&', '~', '%'])
}

/// A format, or a container of formats.
fn format(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.iter().all(|(name, value)| match name.as_str() {
            "json_schema" | "schema" => value.to_string().len() <= SMALL_SCHEMA && schema(value),
            "pattern" | "grammar" => value.as_str().is_some_and(expression),
            _ => format(value),
        }),
        Value::Array(items) => items.iter().all(format),
        _ => true,
    }
}

/// A schema whose parts compile independently: nothing is merged, and no automaton exceeds its text
/// by more than the counts in it.
fn schema(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => {
            let merging = ["$ref", "anyOf", "const", "enum"].into_iter();
            let merged = merging.filter(|name| members.contains_key(*name)).count();
            let constrained = members.contains_key("type") || members.contains_key("properties");
            let members_small = members.iter().all(|(name, value)| member(name, value));
            let reference = members.contains_key("$ref") && constrained;
            merged <= 1 && !reference && members_small
        }
        Value::Bool(_) => true,
        _ => false,
    }
}

fn member(name: &str, value: &Value) -> bool {
    let map = |map: &Map<String, Value>| map.values().all(schema);
    match name {
        "properties" | "$defs" | "definitions" => value.as_object().is_some_and(map),
        "additionalProperties" | "items" if !value.is_array() => schema(value),
        "pattern" => value.as_str().is_some_and(pattern),
        "anyOf" | "prefixItems" => value.as_array().is_some_and(|list| list.iter().all(schema)),
        "minLength" | "maxLength" | "minItems" | "maxItems" => {
            value.as_u64().is_some_and(|count| count <= SMALL_COUNT)
        }
        "type" | "required" | "enum" | "const" | "format" | "minimum" | "maximum" => true,
        "exclusiveMinimum" | "exclusiveMaximum" | "$ref" | "$schema" | "$id" => true,
        "title" | "description" | "default" | "examples" | "$comment" | "deprecated" => true,
        _ => false,
    }
}

/// A short pattern with small counts.
fn pattern(text: &str) -> bool {
    let counts = text.split('{').skip(1).map(|rest| {
        let counted = rest.split('}').next().unwrap_or_default();
        let numbers = counted.split(',').filter_map(|number| number.parse().ok());
        numbers.max().unwrap_or(1u64).max(1)
    });
    text.len() <= SMALL_TEXT && counts.fold(1, u64::saturating_mul) <= SMALL_COUNT
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn small(schema: Value) -> bool {
        is_small(&Grammar::new(GrammarKind::JsonSchema, schema.to_string()))
    }

    #[test]
    fn ordinary_schemas_are_small_and_those_that_can_explode_are_not() {
        let record = json!({"type": "object", "required": ["a"], "additionalProperties": false,
            "properties": {"a": {"type": "string", "maxLength": 40, "description": "x"},
                "b": {"anyOf": [{"type": "integer", "minimum": 0}, {"$ref": "#/$defs/c"}]}},
            "$defs": {"c": {"enum": ["x", null]}}});
        assert!(small(record));
        assert!(small(json!({"pattern": "^[a-z]{2,4}-[0-9]{1,8}$"})));
        for large in [
            json!({"multipleOf": 7}),
            json!({"pattern": "(a{1,100}){1,100}"}),
            json!({"maxLength": 5000}),
            json!({"allOf": [{"type": "integer"}]}),
            json!({"type": "array", "items": {"patternProperties": {"a": true}}}),
            json!({"anyOf": [{"type": "null"}], "enum": [null]}),
            json!({"type": "object", "$ref": "#"}),
            json!({"not": {}}),
        ] {
            assert!(!small(large.clone()), "{large}");
        }
        let of = |kind, text: &str| is_small(&Grammar::new(kind, text));
        assert!(of(GrammarKind::Regex, "[ab]+c?"));
        assert!(!of(GrammarKind::Regex, "((a{1,100}){1,100}){1,100}"));
        assert!(!of(GrammarKind::Syntax, "start: %json {\"multipleOf\": 7}"));
        let tag = |schema| json!({"format": {"type": "json_schema", "json_schema": schema}});
        let text = tag(json!({"type": "object"})).to_string();
        assert!(of(GrammarKind::StructuralTag, &text));
        let long = json!({"type": "object", "description": "x".repeat(SMALL_SCHEMA)});
        let text = tag(long.clone()).to_string();
        assert!(!small(long) && !of(GrammarKind::StructuralTag, &text));
        let text = tag(json!({"multipleOf": 7})).to_string();
        assert!(!of(GrammarKind::StructuralTag, &text));
    }

    #[test]
    fn a_trial_ends_whatever_the_grammar_is() {
        let words = ["<end>", "a", "b"].map(|word| word.as_bytes().to_vec());
        let vocabulary = Vocabulary::of_tokens(words.to_vec(), vec![("<end>".into(), 0)]).unwrap();
        let compiler = Compiler::new(vocabulary);
        for (kind, text) in [
            (GrammarKind::Regex, "[ab]+"),
            (GrammarKind::Regex, "("),
            (GrammarKind::Syntax, "start: <end>"),
        ] {
            let job = trial_job(&compiler, &[Grammar::new(kind, text)]).unwrap();
            let outcome = run_trial(&job).unwrap();
            assert_eq!(trial_verdict(Some(&outcome)), Ok(()));
        }
        assert!(run_trial("{}").is_err());
        assert_eq!(trial_verdict(None), Err(GrammarError::TooLarge));
    }

    #[test]
    #[ignore = "run by a_thread_that_cannot_start_says_nothing_of_a_grammar"]
    fn without_threads() {
        let words = ["<end>", "a"].map(|word| word.as_bytes().to_vec());
        let vocabulary = Vocabulary::of_tokens(words.to_vec(), vec![("<end>".into(), 0)]).unwrap();
        let compiler = Compiler::new(vocabulary);
        let limit = std::time::Duration::from_secs(1);
        let grammar = Grammar::new(GrammarKind::Regex, "a");
        let busy = GrammarError::Busy;
        assert_eq!(compiler.check_schema("{}", limit), Err(busy.clone()));
        assert_eq!(compiler.compile(&grammar, limit).err(), Some(busy.clone()));
        let job = trial_job(&compiler, &[grammar]).unwrap();
        let outcome = run_trial(&job).unwrap();
        assert_eq!(trial_verdict(Some(&outcome)), Err(busy));
        println!("none was compiled");
    }

    #[test]
    fn a_thread_that_cannot_start_says_nothing_of_a_grammar() {
        // The limit on the address space (in KiB) is less than the compile thread's stack size.
        let script = "ulimit -v 400000; exec \"$0\" --ignored --nocapture without_threads";
        let program = std::env::current_exe().unwrap();
        let output = std::process::Command::new("/bin/sh")
            .args(["-c", script])
            .arg(program)
            .output()
            .unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{shown}");
        assert!(shown.contains("none was compiled"), "{shown}");
    }
}
