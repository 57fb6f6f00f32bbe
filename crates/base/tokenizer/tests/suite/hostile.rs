//! Damaged tokenizer.json files and arbitrary templates give an error or a result, never a panic or
//! a hang. Set PROPTEST_CASES for a long run.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use penstock_tokenizer::{ChatTemplate, SpecialTokens, TextModel};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};

/// Not a bound on speed: the machine may be busy.
const HANG: Duration = Duration::from_secs(300);

/// One tokenizer.json per model type of the `tokenizers` crate. Fuzzing starts from the same files.
fn tokenizers() -> Vec<Value> {
    let files = include_str!("../tokenizers.json");
    let files: Map<String, Value> = serde_json::from_str(files).unwrap();
    files.into_iter().map(|(_, file)| file).collect()
}

fn odd() -> impl Strategy<Value = Value> {
    let values = vec![
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(3),
        json!(200_000_000),
        json!(u32::MAX),
        json!(f64::MAX),
        json!(""),
        json!("▁▁▁▁"),
        json!("é"),
        json!("(a*)*b"),
        json!([]),
        json!({}),
        json!(["a", "b"]),
    ];
    select(values)
}

/// Paths of all nodes except the root.
fn nodes(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut child = |key: &str, value: &Value| {
        let path = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
        found.push(path.clone());
        nodes(value, &path, found);
    };
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(i, item)| child(&i.to_string(), item)),
        Value::Object(map) => map.iter().for_each(|(key, item)| child(key, item)),
        _ => {}
    }
}

struct Directory(PathBuf);

impl Directory {
    fn with(tokenizer: &[u8]) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("penstock-hostile-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("tokenizer.json"), tokenizer).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Opens a tokenizer and uses it; returns the size of the vocabulary if it opens.
fn used(tokenizer: &[u8]) -> Option<usize> {
    let began = Instant::now();
    let directory = Directory::with(tokenizer);
    let model = TextModel::open(&directory.0, None).ok();
    if let Some(model) = &model {
        for text in [
            "",
            "ab ba <s>a</s>",
            "é▁ \u{0}😀",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
        ] {
            if let Ok(ids) = model.tokenizer.encode(text, true) {
                model.tokenizer.decode(&ids, false);
            }
        }
        model.tokenizer.decode(&[0, 3, 5, 99, u32::MAX], true);
    }
    assert!(
        began.elapsed() < HANG,
        "{}",
        String::from_utf8_lossy(tokenizer)
    );
    model.map(|model| model.tokenizer.vocab_size())
}

#[test]
fn undamaged_tokenizers_open() {
    for tokenizer in tokenizers() {
        assert_eq!(
            used(tokenizer.to_string().as_bytes()),
            Some(6),
            "{tokenizer}"
        );
    }
}

/// Pieces of templates: usual ones and malicious ones.
fn piece() -> impl Strategy<Value = &'static str> {
    select(vec![
        "{% for m in messages %}",
        "{% endfor %}",
        "{% if m.role == 'user' %}",
        "{% else %}",
        "{% endif %}",
        "{{ m.content }}",
        "{{ messages[-1]['content'][0:3] }}",
        "{{ messages|tojson }}",
        "{% set x = x ~ x %}",
        "{% set ns = namespace(n=0) %}",
        "{% set ns.n = ns.n + 1 %}",
        "{% macro f(a) %}{{ f(a) }}{% endmacro %}",
        "{{ f(1) }}",
        "{{ raise_exception('no') }}",
        "{{ strftime_now('%Y %Q') }}",
        "{{ range(10**9)|list }}",
        "{% for i in range(10**12) %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ ''.join(messages) }}",
        "{{ none.x.y }}",
        "{{ messages|sort(attribute='role')|map('upper') }}",
        "{{ 9999999999999 * 9999999999999 }}",
        "{% generation %}",
        "{{",
        "%}",
        "\u{0}",
        "text",
    ])
}

proptest! {
    #[test]
    fn damaged_tokenizers_are_errors_or_work(
        which in any::<Index>(),
        damages in prop::collection::vec((any::<Index>(), odd()), 1..5),
    ) {
        let mut tokenizer = which.get(&tokenizers()).clone();
        for (at, value) in damages {
            let mut paths = Vec::new();
            nodes(&tokenizer, "", &mut paths);
            if !paths.is_empty() {
                *tokenizer.pointer_mut(at.get(&paths).as_str()).unwrap() = value;
            }
        }
        used(tokenizer.to_string().as_bytes());
    }

    #[test]
    fn damaged_bytes_of_tokenizers_are_errors_or_work(
        which in any::<Index>(),
        edits in prop::collection::vec((any::<Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = which.get(&tokenizers()).to_string().into_bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        used(&bytes);
    }

    #[test]
    fn templates_of_any_kind_end(pieces in prop::collection::vec(piece(), 0..12)) {
        let began = Instant::now();
        let messages = json!([{"role": "user", "content": "hi"},
                              {"role": "assistant", "content": null}]);
        if let Ok(template) = ChatTemplate::parse(&pieces.concat(), SpecialTokens::new()) {
            let _ = template.render(&messages, true, None, &Map::new());
        }
        prop_assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
    }
}

#[test]
fn templates_that_build_chains_or_share_values_end() {
    let chain = "{% set ns = namespace(c=none) %}";
    let shared = "{% set a = [1] %}{% set b = [1] %}";
    let doubled = "{% set a = [a, a] %}{% set b = [b, b] %}".repeat(60);
    let long = "{% set s = 'é' * 3000000 %}{% for i in range(100000) %}";
    let tuple = "{% set t = (1, 2) %}".to_owned() + &"{% set t = (t, t) %}".repeat(60);
    let templates = [
        // Each caller, and each loop, holds the previous one.
        format!(
            "{chain}{{% macro m() %}}{{% set ns.c = caller %}}{{% endmacro %}}\
             {{% for i in range(100000) %}}{{% set prev = ns.c %}}\
             {{% call m() %}}x{{% endcall %}}{{% endfor %}}"
        ),
        format!(
            "{chain}{{% for i in range(100000) %}}{{% set prev = ns.c %}}\
             {{% for j in [1] %}}{{% set ns.c = loop %}}{{% endfor %}}{{% endfor %}}"
        ),
        format!(
            "{{% filter {}upper %}}a{{% endfilter %}}",
            "upper|".repeat(60_000)
        ),
        format!(
            "{{% set x | {}upper %}}a{{% endset %}}",
            "upper|".repeat(60_000)
        ),
        format!("{shared}{doubled}{{{{ a == b }}}}"),
        format!("{shared}{doubled}{{{{ a in [b] }}}}{{{{ [a].count(b) }}}}"),
        format!("{shared}{doubled}{{% for x in [a, b] %}}{{{{ loop.changed(x) }}}}{{% endfor %}}"),
        format!("{tuple}{{{{ {{t: 1}} }}}}"),
        format!("{long}{{% if s %}}{{% endif %}}{{% endfor %}}"),
        format!("{long}{{% if s|length %}}{{% endif %}}{{% endfor %}}"),
        "{% set ns = namespace(l=[]) %}{% for i in range(50000) %}{{ ns.l.append((i, i)) }}\
         {% endfor %}{% set d = dict(ns.l) %}{% for i in range(100000) %}{% set x = dict(d) %}\
         {{ ns.l.append(x) }}{% endfor %}"
            .to_owned(),
    ];
    for template in templates {
        let began = Instant::now();
        if let Ok(parsed) = ChatTemplate::parse(&template, SpecialTokens::new()) {
            let _ = parsed.render(&json!([]), true, None, &Map::new());
        }
        let took = began.elapsed();
        assert!(
            took < HANG,
            "{took:?}: {}",
            &template[..template.len().min(80)]
        );
    }
}
