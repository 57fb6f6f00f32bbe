//! Templates that request more text, values or work than a rendering may use are refused before
//! they get it.

#![allow(clippy::unwrap_used)]

use penstock_tokenizer::{ChatTemplate, SpecialTokens, TextError};
use serde_json::{Map, json};

/// Upper bound on this process's memory in bytes while all tests run concurrently. The step budget
/// of one rendering allows 640 MB of text.
const MOST: usize = 2 << 30;

fn render(source: &str) -> Result<String, TextError> {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let template = ChatTemplate::parse(source, SpecialTokens::new())?;
    template.render(&messages, true, None, &Map::new())
}

fn most_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kibibytes.unwrap().parse::<usize>().unwrap() << 10
}

const ENTRIES: &str = "{% set texts = range(100000)|map('string')|list %}{% set d = \
                       dict(texts|batch(2)) %}";

#[test]
fn what_is_too_large_is_refused_before_it_is_built() {
    let text = "t".repeat(1 << 20);
    let templates = [
        "{{ ('%1048576d' * 10000) % ((1,) * 10000) }}".to_owned(),
        "{{ ('{:1048576d}' * 10000).format(*((1,) * 10000)) }}".to_owned(),
        "{{ ('{k[a]}' * 10000).format_map({'k': {'a': 'a' * 1000000}}) }}".to_owned(),
        "{{ ('a' * 10000).translate({97: 'a' * 1000000}) }}".to_owned(),
        "{{ (['a' * 1000000] * 10000) | sort }}".to_owned(),
        "{{ (['a' * 1000000] * 10000) | unique | list }}".to_owned(),
        "{{ (',' * 100000000).split(',') }}".to_owned(),
        "{{ ('a ' * 50000000).split() }}".to_owned(),
        "{{ ('a\\n' * 50000000).splitlines() }}".to_owned(),
        "{{ ('\\n' * 100000000)|indent(30, blank=true) }}".to_owned(),
        "{{ [1]|map(attribute='a.' * 50000000)|list }}".to_owned(),
        "{{ ''|slice(15000000)|list }}".to_owned(),
        "{{ strftime_now('%c' * 50000000) }}".to_owned(),
        "{{ 'é' * 200000000 }}".to_owned(),
        "{{ ('<' * 300000000)|escape }}".to_owned(),
        "{% set x = [['a' * 1000000] * 31] * 100 %}{% for i in range(100) %}{% set y = x ~ '' %}\
         {% endfor %}"
            .to_owned(),
        // Each call holds its text until the innermost call ends.
        format!(
            "{{% macro m(n) %}}{{% for i in range(31) %}}{text}{{% endfor %}}{{% if n %}}\
             {{{{ m(n - 1) }}}}{{% endif %}}{{% endmacro %}}{{{{ m(150) }}}}"
        ),
        // Each dict is sorted within the step budget of the rendering.
        format!(
            "{ENTRIES}{{% for i in range(100) %}}{{% set x = d|tojson(sort_keys=true) %}}\
             {{% endfor %}}"
        ),
        "{{ [1]|tojson(indent='a' * 65) }}{{ [1]|tojson(indent=65) }}".to_owned(),
    ];
    for template in templates {
        let shown = &template[..template.len().min(90)];
        let error = render(&template).unwrap_err();
        assert!(
            matches!(error, TextError::TemplateLimit { .. }),
            "{shown}: {error}"
        );
        let memory = most_memory();
        assert!(memory < MOST, "{shown}: {memory}");
    }
}

#[test]
fn widths_and_precisions_are_python_s_or_refused() {
    let digits = |source: &str| render(source).unwrap().len();
    assert_eq!(digits("{{ '%.70000f' % 1.0 }}"), 70_002);
    assert_eq!(digits("{{ '%.70000e' % 1.0 }}"), 70_006);
    assert_eq!(digits("{{ '%.*f' % (70000, 1.0) }}"), 70_002);
    assert_eq!(digits("{{ '%.1048576d' % 1 }}"), 1 << 20);
    assert_eq!(digits("{{ '{:.70000%}'.format(1.0) }}"), 70_005);
    for source in [
        "{{ '%.1048577f' % 1.0 }}",
        "{{ '%1048577d' % 1 }}",
        "{{ '%.1048577d' % 1 }}",
        "{{ '%99999999999999999999999d' % 1 }}",
        "{{ '%*d' % (10**30, 1) }}",
        "{{ '%.*f' % (10**30, 1) }}",
        "{{ '{:1048577}'.format(1) }}",
        "{{ '{:99999999999999999999999}'.format('a') }}",
        "{{ '{:.1048577f}'.format(1) }}",
        "{{ '{:.99999999999999999999999}'.format(1.0) }}",
        "{{ '{:>{}}'.format(1, 10**30) }}",
    ] {
        let error = render(source).unwrap_err();
        assert!(
            matches!(error, TextError::TemplateLimit { .. }),
            "{source}: {error}"
        );
    }
}

/// Sorting values without a consistent order does not panic.
#[test]
fn values_without_a_consistent_order_are_sorted() {
    let source = "{% set nan = 'nan'|float %}{% set ns = namespace(l=[]) %}{% for i in range(500) \
                  %}{% do ns.l.append(nan if i % 7 == 3 else (i * 7919) % 101) %}{% endfor \
                  %}{{ ns.l|sort|length }} {{ ns.l|sort(reverse=true)|length }}";
    assert_eq!(render(source).unwrap(), "500 500");
}

#[test]
fn keywords_of_a_long_dict_are_taken_one_by_one() {
    let source = format!(
        "{ENTRIES}{{% macro m(a) %}}{{{{ kwargs|length }}}}{{% endmacro %}}{{{{ m(1, **d) }}}}"
    );
    assert_eq!(render(&source).unwrap(), "50000");
    let error = render("{% macro m(a) %}{% endmacro %}{{ m(a=1, **{'a': 2}) }}").unwrap_err();
    assert!(error.to_string().contains("multiple values"), "{error}");
}

#[test]
fn a_format_field_goes_on_with_a_point_or_a_bracket() {
    let error = render("{{ '{0[a]é}'.format({'a': 1}) }}").unwrap_err();
    assert!(matches!(error, TextError::TemplateRender { .. }), "{error}");
}
