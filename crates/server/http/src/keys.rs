//! API keys: plain ones of the command line, and named ones of a file with their own limits.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderName, Request, header};
use serde::Deserialize;
use subtle::{Choice, ConstantTimeEq};

use crate::rate::{KeyUse, RateLimits};
use crate::{Reloaded, is_below};

/// Key header of Anthropic's clients.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Format of a key file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    keys: Vec<NamedKey>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedKey {
    /// Name in logs.
    name: String,
    key: String,
    #[serde(default)]
    own_cache: bool,
    /// Allowed paths, including everything below them; without a list, all.
    endpoints: Option<Vec<String>>,
    #[serde(flatten)]
    limits: RateLimits,
}

/// The holder of a named key. Requests with the key get it as an extension.
#[derive(Debug)]
pub struct Caller {
    pub name: String,
    /// Secret that salts cached prefixes, if they are not shared with other keys.
    own_cache: Option<[u8; 32]>,
    pub limits: RateLimits,
    /// Allowed paths, including everything below them; `None`: all.
    endpoints: Option<Vec<String>>,
    /// Preserved across reloads of the file.
    pub usage: Arc<KeyUse>,
}

impl Caller {
    /// Derives the cache salt of a request with the salt `asked` ("" for none), if the key has a
    /// cache of its own: 64 hexadecimal characters, which do not reveal the key.
    pub fn cache_salt(&self, asked: &str) -> Option<String> {
        let secret = self.own_cache.as_ref()?;
        let salt = blake3::keyed_hash(secret, asked.as_bytes());
        Some(salt.to_hex().to_string())
    }

    /// Whether the key may use the endpoint at `path`.
    pub fn may_reach(&self, path: &str) -> bool {
        let below = |root: &String| is_below(path, root);
        let listed = self.endpoints.as_ref();
        listed.is_none_or(|endpoints| endpoints.iter().any(below))
    }
}

/// Callers with their keys.
type Callers = Vec<(String, Arc<Caller>)>;

/// The keys of a server.
#[derive(Debug)]
pub struct Keys {
    /// Keys without name and limits.
    plain: Vec<String>,
    file: Option<Arc<Reloaded<Callers>>>,
}

/// Result of authenticating a request.
#[derive(Debug, Clone)]
pub enum Bearer {
    /// No key is required, or the key has no name.
    Anyone,
    Named(Arc<Caller>),
}

impl Keys {
    /// Keys without names; if empty, no key is required.
    pub fn plain(plain: Vec<String>) -> Self {
        Self { plain, file: None }
    }

    /// Plain keys (possibly none) and a key file, which is reloaded when it changes.
    ///
    /// # Errors
    /// The file is missing or malformed; the text names it.
    pub fn start(plain: Vec<String>, file: Option<PathBuf>) -> Result<Self, String> {
        let usage = Mutex::new(HashMap::new());
        let file = file.map(|path| {
            let read = {
                let path = path.clone();
                move || read(&path, &usage)
            };
            Reloaded::start(vec![path], read)
        });
        Ok(Self {
            plain,
            file: file.transpose()?,
        })
    }

    /// Authenticates a request. `None` if a key is required and the request has no valid one. Keys
    /// are compared in full, so the timing reveals only lengths.
    pub fn bearer(&self, request: &Request<Body>) -> Option<Bearer> {
        if self.plain.is_empty() && self.file.is_none() {
            return Some(Bearer::Anyone);
        }
        let given = key_of(request)?;
        let mut found = is_one_of(&self.plain, given).then_some(Bearer::Anyone);
        let named = self.file.as_ref().map(|file| file.current());
        for (key, caller) in named.iter().flat_map(|named| named.iter()) {
            if bool::from(key.as_bytes().ct_eq(given)) {
                found = Some(Bearer::Named(caller.clone()));
            }
        }
        found
    }
}

/// Whether the request carries one of `keys`.
pub fn has_key(keys: &[String], request: &Request<Body>) -> bool {
    key_of(request).is_some_and(|given| is_one_of(keys, given))
}

fn is_one_of(keys: &[String], given: &[u8]) -> bool {
    let equal = keys.iter().map(|key| key.as_bytes().ct_eq(given));
    equal
        .fold(Choice::from(0), |found, equal| found | equal)
        .into()
}

/// The key of a request: a bearer token, or the header of Anthropic's clients.
fn key_of(request: &Request<Body>) -> Option<&[u8]> {
    let headers = request.headers();
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
    });
    bearer.or_else(|| Some(headers.get(X_API_KEY)?.as_bytes()))
}

fn are_paths(endpoints: &[String]) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'%' | b'?' | b'#' | b'*');
    let is_path = |one: &String| one.starts_with('/') && one.bytes().all(plain);
    !endpoints.is_empty() && endpoints.iter().all(is_path)
}

fn read(path: &PathBuf, usage: &Mutex<HashMap<String, Arc<KeyUse>>>) -> Result<Callers, String> {
    let failed =
        |error: &dyn std::fmt::Display| format!("--api-key-file {}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    if !text.trim_start().starts_with('{') {
        let form = r#"it must be {"keys": [{"name": "a", "key": "..."}]}"#;
        return Err(failed(&form));
    }
    let file: KeyFile = serde_json::from_str(&text).map_err(|error| failed(&error))?;
    let mut seen: Vec<&NamedKey> = Vec::new();
    for key in &file.keys {
        let name = &key.name;
        let complaint = if name.is_empty() || key.key.is_empty() {
            "every name and key must have a character"
        } else if !key.key.bytes().all(|byte| byte.is_ascii_graphic()) {
            "keys are of visible ASCII characters"
        } else if key.endpoints.as_ref().is_some_and(|all| !are_paths(all)) {
            "endpoints is a list of paths as /v1/chat/completions"
        } else if seen.iter().any(|other| other.name == *name) {
            "two keys have this name"
        } else if seen.iter().any(|other| other.key == key.key) {
            "this key is there twice"
        } else {
            seen.push(key);
            continue;
        };
        return Err(failed(&format_args!("key {name:?}: {complaint}")));
    }
    let mut usage = usage.lock().unwrap_or_else(PoisonError::into_inner);
    let caller = |key: NamedKey| {
        let now = Instant::now();
        let used = usage.entry(key.name.clone());
        let caller = Caller {
            own_cache: key.own_cache.then(|| {
                let context = "penstock 2026-11-22 cache salt of an API key";
                blake3::derive_key(context, key.key.as_bytes())
            }),
            limits: key.limits,
            endpoints: key.endpoints,
            usage: used.or_insert_with(|| Arc::new(KeyUse::new(now))).clone(),
            name: key.name,
        };
        (key.key, Arc::new(caller))
    };
    Ok(file.keys.into_iter().map(caller).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestFile(PathBuf);

    impl TestFile {
        fn new(name: &str, text: &str) -> Self {
            let name = format!("penstock-keys-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::write(&path, text).unwrap();
            Self(path)
        }
    }

    impl Drop for TestFile {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn with(name: &str, value: &str) -> Request<Body> {
        let request = Request::builder().header(name, value);
        request.body(Body::empty()).unwrap()
    }

    #[test]
    fn keys_of_flags_and_of_the_file_are_known() {
        let text = r#"{"keys": [{"name": "a", "key": "ka", "tokens_per_minute": 60},
                                 {"name": "b", "key": "kb", "own_cache": true}]}"#;
        let file = TestFile::new("known", text);
        let keys = Keys::start(vec!["plain".into()], Some(file.0.clone())).unwrap();
        let name = |request| match keys.bearer(&request)? {
            Bearer::Anyone => Some(String::new()),
            Bearer::Named(caller) => Some(caller.name.clone()),
        };
        assert_eq!(name(with("authorization", "Bearer plain")).unwrap(), "");
        assert_eq!(name(with("authorization", "bearer ka")).unwrap(), "a");
        assert_eq!(name(with("x-api-key", "kb")).unwrap(), "b");
        assert_eq!(name(with("authorization", "Bearer k")), None);
        assert_eq!(name(with("authorization", "Basic ka")), None);
        assert_eq!(name(with("other", "ka")), None);
        let open = Keys::plain(Vec::new());
        assert!(open.bearer(&with("other", "x")).is_some());
    }

    #[test]
    fn salts_differ_by_key_and_by_what_is_asked_for() {
        let text = r#"{"keys": [{"name": "a", "key": "ka", "own_cache": true},
                                 {"name": "b", "key": "kb", "own_cache": true},
                                 {"name": "c", "key": "kc"}]}"#;
        let file = TestFile::new("salts", text);
        let keys = Keys::start(Vec::new(), Some(file.0.clone())).unwrap();
        let salt = |key, asked| match keys.bearer(&with("x-api-key", key)).unwrap() {
            Bearer::Named(caller) => caller.cache_salt(asked),
            Bearer::Anyone => unreachable!(),
        };
        assert_eq!(salt("kc", "x"), None);
        let salts = [
            salt("ka", ""),
            salt("ka", "x"),
            salt("kb", ""),
            salt("kb", "x"),
        ];
        for (at, one) in salts.iter().enumerate() {
            assert_eq!(one.as_ref().unwrap().len(), 64);
            assert!(!salts[..at].contains(one));
        }
        assert_eq!(salt("ka", "x"), salts[1]);
    }

    #[test]
    fn a_key_reaches_its_endpoints_and_what_is_below() {
        let text = r#"{"keys": [{"name": "a", "key": "ka",
                                 "endpoints": ["/v1/models", "/v1/chat/", "/tokenize"]},
                                {"name": "b", "key": "kb"},
                                {"name": "c", "key": "kc", "endpoints": ["/"]}]}"#;
        let file = TestFile::new("endpoints", text);
        let keys = Keys::start(Vec::new(), Some(file.0.clone())).unwrap();
        let reaches = |key, path| match keys.bearer(&with("x-api-key", key)).unwrap() {
            Bearer::Named(caller) => caller.may_reach(path),
            Bearer::Anyone => panic!("{key} has a name"),
        };
        for (path, wanted) in [
            ("/v1/models", true),
            ("/v1/models/org/m", true),
            ("/v1/chat/completions", true),
            ("/tokenize", true),
            ("/v1/modelsx", false),
            ("/v1/completions", false),
            ("/v1/chatter", false),
            ("/V1/models", false),
            ("/", false),
        ] {
            assert_eq!(reaches("ka", path), wanted, "{path}");
            assert!(reaches("kb", path) && reaches("kc", path));
        }
    }

    #[test]
    fn a_wrong_file_is_refused_with_the_key_by_name() {
        for (text, wanted) in [
            ("", "it must be {\"keys\""),
            (r#"[{"name": "a", "key": "x"}]"#, "it must be {\"keys\""),
            ("{}", "missing field `keys`"),
            (r#"{"keys": [{"name": "a", "key": ""}]}"#, "key \"a\""),
            (r#"{"keys": [{"name": "a", "key": "k k"}]}"#, "visible"),
            (
                r#"{"keys": [{"name": "a", "key": "x", "endpoints": []}]}"#,
                "key \"a\": endpoints",
            ),
            (
                r#"{"keys": [{"name": "a", "key": "x", "endpoints": ["v1/models"]}]}"#,
                "key \"a\": endpoints",
            ),
            (
                r#"{"keys": [{"name": "a", "key": "x"}, {"name": "a", "key": "y"}]}"#,
                "two keys have this name",
            ),
            (
                r#"{"keys": [{"name": "a", "key": "x"}, {"name": "b", "key": "x"}]}"#,
                "key \"b\": this key is there twice",
            ),
        ] {
            let file = TestFile::new("wrong", text);
            let error = Keys::start(Vec::new(), Some(file.0.clone())).unwrap_err();
            assert!(
                error.contains(wanted) && error.contains("penstock-keys"),
                "{error}"
            );
        }
        let missing = PathBuf::from("/nonexistent/keys.json");
        assert!(Keys::start(Vec::new(), Some(missing)).is_err());
    }
}
