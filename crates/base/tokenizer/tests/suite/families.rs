//! Chat templates of the model families compared with transformers, with tools, reasoning and
//! system turns.

use std::process::Command;

use penstock_tokenizer::{ChatTemplate, SpecialTokens};
use serde_json::{Map, Value};

/// Inserts today's date, as printed by the system's `date`, into a golden text.
fn dated(text: &str) -> String {
    let today = |format: &str| {
        let mut date = Command::new("date");
        let date = date.args(["-u", &format!("+{format}")]).env("LC_ALL", "C");
        String::from_utf8(date.output().unwrap().stdout).unwrap()
    };
    ["%d %b %Y", "%d %B %Y", "%Y-%m-%d"]
        .iter()
        .fold(text.to_owned(), |text, format| {
            text.replace(&format!("{{{format}}}"), today(format).trim_end())
        })
}

/// The families' templates (`golden/make_families.py`), with tools, system turns and several turns,
/// and their errors.
#[test]
fn families_are_rendered_as_transformers_renders_them() {
    let golden: Map<String, Value> =
        serde_json::from_str(include_str!("../golden/families.json")).unwrap();
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let tokens = SpecialTokens::from(tokens.map(|(role, text)| (role.into(), text.into())));
    for (family, golden) in golden {
        let source = golden["template"].as_str().unwrap();
        let template = ChatTemplate::parse(source, tokens.clone()).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let tools = Some(&case["tools"]).filter(|tools| !tools.is_null());
            let kwargs = case["kwargs"].as_object().unwrap();
            let got = || template.render(&case["messages"], true, tools, kwargs);
            let what = format!("{family}: {} {}", case["messages"], case["kwargs"]);
            if let Some(error) = case["error"].as_str() {
                let message = got().unwrap_err().to_string();
                assert!(message.contains(error), "{what}: {message}");
                continue;
            }
            let text = case["text"].as_str().unwrap();
            // Retry, in case midnight passed in between.
            let same = got().unwrap() == dated(text) || got().unwrap() == dated(text);
            assert!(same, "{what}\n{}\nis not\n{}", got().unwrap(), dated(text));
        }
    }
}
