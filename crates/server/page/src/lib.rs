//! The web page at `/`: its files, and the routes that serve them. It calls the HTTP API like any
//! other client, so nothing here knows about models or requests.

use std::hash::{DefaultHasher, Hasher};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::routing::get;

/// One file of the page.
struct File {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

macro_rules! file {
    ($name:literal, $kind:expr) => {
        File {
            name: $name,
            kind: $kind,
            bytes: include_bytes!(concat!("../assets/", $name)),
        }
    };
}

const INDEX: File = file!("index.html", HTML);
const ICON: File = file!("icon.svg", "image/svg+xml");
const FILES: &[File] = &[
    ICON,
    file!("style.css", CSS),
    file!("chat.css", CSS),
    file!("markdown.css", CSS),
    file!("sections.css", CSS),
    file!("api.js", SCRIPT),
    file!("chart.js", SCRIPT),
    file!("chat.js", SCRIPT),
    file!("completion.js", SCRIPT),
    file!("composer.js", SCRIPT),
    file!("conversation.js", SCRIPT),
    file!("dom.js", SCRIPT),
    file!("examples.js", SCRIPT),
    file!("export.js", SCRIPT),
    file!("generate.js", SCRIPT),
    file!("inline.js", SCRIPT),
    file!("live.js", SCRIPT),
    file!("main.js", SCRIPT),
    file!("markdown.js", SCRIPT),
    file!("message.js", SCRIPT),
    file!("metrics.js", SCRIPT),
    file!("reference.js", SCRIPT),
    file!("render.js", SCRIPT),
    file!("replicas.js", SCRIPT),
    file!("request.js", SCRIPT),
    file!("settings.js", SCRIPT),
    file!("sidebar.js", SCRIPT),
    file!("sse.js", SCRIPT),
    file!("store.js", SCRIPT),
    file!("thread.js", SCRIPT),
    file!("tokens.js", SCRIPT),
    file!("toolbar.js", SCRIPT),
];

/// Prefix of the paths of [`FILES`].
const FOLDER: &str = "/page/";
const ICON_PATHS: [&str; 2] = ["/favicon.ico", "/favicon.svg"];

/// Scripts, styles and requests of this origin only; nothing inline, no frames, no forms, and no
/// HTML made from strings (trusted types).
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// The icon under the names that browsers look for by themselves.
pub fn icon_routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    routes_of(ICON_PATHS.map(|path| (path.to_owned(), &ICON)))
}

/// The files that the page loads.
pub fn file_routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    routes_of(FILES.iter().map(|file| (path_of(file), file)))
}

fn path_of(file: &File) -> String {
    format!("{FOLDER}{}", file.name)
}

fn routes_of<S: Clone + Send + Sync + 'static>(
    files: impl IntoIterator<Item = (String, &'static File)>,
) -> Router<S> {
    let mut router = Router::new();
    for (path, file) in files {
        let answer =
            async move |headers: HeaderMap| respond(&headers, file.kind, file.bytes.into());
        router = router.route(&path, get(answer));
    }
    router
}

/// The page for a request to `path`, which is `/` or the root path of a gateway.
pub fn index(headers: &HeaderMap, path: &str) -> Response<Body> {
    // Relative links resolve against the parent of a path without a trailing slash.
    let last = path.rsplit('/').next().unwrap_or_default();
    let body = match last {
        "" => INDEX.bytes.to_vec(),
        _ => {
            let text = String::from_utf8_lossy(INDEX.bytes);
            text.replace("=\"page/", &format!("=\"{last}/page/"))
                .into_bytes()
        }
    };
    let mut response = respond(headers, INDEX.kind, body);
    vary(&mut response);
    response
}

/// Marks a response as one of several that `/` has.
pub fn vary(response: &mut Response<Body>) {
    let headers = response.headers_mut();
    headers.append(header::VARY, HeaderValue::from_static("accept"));
}

/// Whether a client is a browser that opens a page: it names `text/html` among what it accepts.
pub fn wants_page(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(header::ACCEPT).iter();
    let mut ranges = ranges
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    ranges.any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let refused = parts.any(|part| {
            let weight = part.strip_prefix("q=").map(str::parse);
            weight.is_some_and(|weight| weight == Ok(0.0_f32))
        });
        kind.eq_ignore_ascii_case("text/html") && !refused
    })
}

/// Whether `path` needs no API key: the files disclose nothing, and browsers load them without one.
/// `page`: whether the page is served.
pub fn is_public(path: &str, headers: &HeaderMap, page: bool) -> bool {
    let file = path.starts_with(FOLDER) || (path == "/" && wants_page(headers));
    ICON_PATHS.contains(&path) || (page && file)
}

fn respond(headers: &HeaderMap, kind: &'static str, body: Vec<u8>) -> Response<Body> {
    let mut hasher = DefaultHasher::new();
    hasher.write(&body);
    let tag = format!("\"{:016x}\"", hasher.finish());
    let known = headers.get(header::IF_NONE_MATCH);
    let known = known.is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let (status, body) = match known {
        true => (StatusCode::NOT_MODIFIED, Body::empty()),
        false => (StatusCode::OK, body.into()),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let answer = response.headers_mut();
    let mut set = |name, value| answer.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_TYPE, kind);
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    // A copy is used again only after the server has confirmed it.
    set(header::CACHE_CONTROL, "no-cache");
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "no-referrer");
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        answer.insert(header::ETAG, tag);
    }
    response
}

#[cfg(test)]
mod tests;
