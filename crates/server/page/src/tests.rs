#![allow(clippy::unwrap_used)]

use axum::http::header::{ACCEPT, CONTENT_SECURITY_POLICY, ETAG, IF_NONE_MATCH};
use http_body_util::BodyExt;

use super::*;

fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
    [(name, value.parse().unwrap())].into_iter().collect()
}

fn text(file: &File) -> &'static str {
    std::str::from_utf8(file.bytes).unwrap()
}

async fn body(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn every_file_of_the_folder_is_served() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets");
    let mut there: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    there.sort();
    let mut served: Vec<&str> = FILES.iter().map(|file| file.name).collect();
    served.push(INDEX.name);
    served.sort_unstable();
    assert_eq!(there, served);
}

/// What the policy refuses, in files that a browser may not have been tried with.
#[test]
fn no_file_makes_html_or_code_from_strings() {
    const SINKS: [&str; 9] = [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "DOMParser",
        "createContextualFragment",
        "setHTML",
        "eval(",
        "new Function",
    ];
    for file in FILES {
        let found = SINKS.iter().find(|sink| text(file).contains(**sink));
        assert_eq!(found, None, "{}", file.name);
    }
}

#[test]
fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
    let page = text(&INDEX);
    for inline in ["<style", " style=", "onclick", "onload", "javascript:"] {
        assert!(!page.contains(inline), "{inline}");
    }
    for script in page.split("<script").skip(1) {
        let (attributes, inside) = script.split_once('>').unwrap();
        assert!(attributes.contains(" src=\"page/"), "{attributes}");
        assert!(inside.starts_with("</script>"), "{inside}");
    }
    for file in FILES.iter().chain([&INDEX]) {
        let elsewhere: &[&str] = match file.kind {
            CSS => &["url(", "@import"],
            _ => &["src=\"http", "href=\"http", "from \"http", "import(\"http"],
        };
        let found = elsewhere.iter().find(|one| text(file).contains(**one));
        assert_eq!(found, None, "{}", file.name);
    }
}

#[test]
fn every_import_and_link_names_a_file() {
    let names: Vec<&str> = FILES.iter().map(|file| file.name).collect();
    for file in FILES.iter().filter(|file| file.kind == SCRIPT) {
        for part in text(file).split("from \"./").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(names.contains(&name), "{} imports {name}", file.name);
        }
    }
    for part in text(&INDEX).split("=\"page/").skip(1) {
        assert!(names.contains(&part.split('"').next().unwrap()));
    }
}

#[test]
fn browsers_get_the_page_and_programs_do_not() {
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    for (accept, wanted) in [
        (browser, true),
        ("application/json, TEXT/HTML;level=1", true),
        ("*/*", false),
        ("text/plain", false),
        ("text/html;q=0, text/plain", false),
        ("text/html; q=0.0", false),
        ("text/html; q=0.1", true),
        ("", false),
    ] {
        assert_eq!(wants_page(&headers(ACCEPT, accept)), wanted, "{accept}");
    }
    assert!(!wants_page(&HeaderMap::new()));
}

#[test]
fn only_files_are_public() {
    let browser = headers(ACCEPT, "text/html");
    let program = headers(ACCEPT, "*/*");
    assert!(is_public("/", &browser, true));
    assert!(!is_public("/", &browser, false) && !is_public("/", &program, true));
    assert!(is_public("/page/main.js", &program, true));
    assert!(!is_public("/page/main.js", &program, false));
    assert!(is_public("/favicon.ico", &program, false));
    for path in ["/v1/models", "/page", "/pages/x", "/v1/page/x", "/metrics"] {
        assert!(!is_public(path, &browser, true), "{path}");
    }
}

#[tokio::test]
async fn links_lead_to_the_files_whatever_the_path() {
    for (path, link) in [
        ("/", "\"page/main.js\""),
        ("/llm", "\"llm/page/main.js\""),
        ("/team/llm", "\"llm/page/main.js\""),
    ] {
        let page = body(index(&HeaderMap::new(), path)).await;
        assert!(page.contains(&format!("src={link}")), "{path}");
    }
}

#[tokio::test]
async fn a_copy_that_is_current_is_not_sent_again() {
    let first = respond(&HeaderMap::new(), SCRIPT, b"x".to_vec());
    assert_eq!(first.status(), StatusCode::OK);
    assert!(first.headers().contains_key(CONTENT_SECURITY_POLICY));
    let tag = first.headers()[ETAG].to_str().unwrap().to_owned();
    let again = respond(&headers(IF_NONE_MATCH, &tag), SCRIPT, b"x".to_vec());
    assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    assert_eq!(body(again).await, "");
    let changed = respond(&headers(IF_NONE_MATCH, &tag), SCRIPT, b"y".to_vec());
    assert_eq!(changed.status(), StatusCode::OK);
}
