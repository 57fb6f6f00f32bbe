//! Alternative forms of a conversation that a request's template refuses.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use penstock_tokenizer::{Conversation, Elsewhere, TextModel, run_template_job};
use serde_json::json;

#[test]
fn a_template_that_refuses_all_forms_is_one_job() {
    let jobs = Arc::new(AtomicUsize::new(0));
    let counted = jobs.clone();
    let mut model = TextModel::of_words(9).unwrap();
    model.elsewhere = Some(Elsewhere::new(move |job| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(run_template_job(job).ok())
    }));
    let system = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]);
    let shown = |source: &str| {
        let chat = Conversation {
            template: Some(source),
            ..Conversation::of(&system)
        };
        let rendered = model.render(&chat, false);
        let shown = rendered.map(|r| r.written()).map_err(|e| e.to_string());
        (shown, jobs.swap(0, Ordering::Relaxed))
    };
    assert_eq!(
        shown("{{ raise_exception('no') }}"),
        (Err("no".to_owned()), 1)
    );
    // The fallback to an accepted form happens within the job.
    let first = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}\
        {{ messages[0].content }}";
    assert_eq!(shown(first), (Ok("s\n\nu".to_owned()), 1));
}
