//! Builds an object store from a URL and options.

use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::ClientConfigKey;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{BackoffConfig, ObjectStore, ObjectStoreScheme, RetryConfig};
use url::Url;

use super::http::Connector;
use crate::remote::tls;

/// An object store and its options.
pub(super) struct ObjectLocation {
    /// The URL for display.
    pub(super) name: String,
    pub(super) store: Arc<dyn ObjectStore>,
    /// Prefix of all object names.
    pub(super) prefix: Path,
    /// Time-out of a call, including retries.
    pub(super) answer: Duration,
    /// Remedy if the first request fails.
    pub(super) hint: &'static str,
}

/// Options defined by Penstock. The `object_store` crate defines the others, by URL scheme.
struct Own {
    connect: Duration,
    answer: Duration,
    authorities: Option<String>,
    allow_http: bool,
}

macro_rules! configured {
    ($builder:ty, $key:ident, $url:expr, $options:expr, $own:expr) => {{
        let mut builder = <$builder>::new()
            .with_url($url.as_str())
            .with_retry($own.retry())
            .with_http_connector($own.connector()?);
        for (name, value) in $options {
            let unknown = || format!("option {name:?} is not known for {}://", $url.scheme());
            let key: $key = name.to_ascii_lowercase().parse().map_err(|_| unknown())?;
            if let $key::Client(client) = &key
                && *client != ClientConfigKey::AllowHttp
            {
                return Err(unknown());
            }
            builder = builder.with_config(key, value);
        }
        Arc::new(builder.build().map_err(|error| error.to_string())?)
    }};
}

impl ObjectLocation {
    /// Parses a URL and its options. The error describes the problem and the remedy.
    pub(super) fn new(url: &str, options: &BTreeMap<String, String>) -> Result<Self, String> {
        let url = Url::parse(url).map_err(|error| format!("{url:?}: {error}"))?;
        let (scheme, prefix) = ObjectStoreScheme::parse(&url).map_err(|error| error.to_string())?;
        let mut options = options.clone();
        let own = Own::take(&mut options)?;
        let mut hint = "";
        let store: Arc<dyn ObjectStore> = match scheme {
            ObjectStoreScheme::Memory => match options.keys().next() {
                None => Arc::new(InMemory::new()),
                Some(name) => return Err(format!("option {name:?} is not known for memory://")),
            },
            ObjectStoreScheme::Local => {
                return Err("a directory is a disk tier: --kv-tier disk:PATH,SIZE".into());
            }
            ObjectStoreScheme::AmazonS3 => {
                hint = s3_hint(&options);
                let options = signing(&options, &own);
                configured!(AmazonS3Builder, AmazonS3ConfigKey, &url, &options, own)
            }
            ObjectStoreScheme::GoogleCloudStorage => configured!(
                GoogleCloudStorageBuilder,
                GoogleConfigKey,
                &url,
                &options,
                own
            ),
            ObjectStoreScheme::MicrosoftAzure => {
                configured!(MicrosoftAzureBuilder, AzureConfigKey, &url, &options, own)
            }
            _ => {
                return Err(format!("{:?} is none of s3, gs, az, abfs", url.scheme()));
            }
        };
        Ok(Self {
            name: shown(&url),
            store,
            prefix,
            answer: own.answer,
            hint,
        })
    }
}

impl Own {
    fn take(options: &mut BTreeMap<String, String>) -> Result<Self, String> {
        let mut seconds = |name: &str, default: f64| match options.remove(name) {
            None => Ok(Duration::from_secs_f64(default)),
            Some(text) => text
                .parse()
                .ok()
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                .filter(|duration| !duration.is_zero())
                .ok_or_else(|| format!("option {name}: {text:?} is no number of seconds")),
        };
        let (connect, answer) = (
            seconds("connect_timeout_s", 2.0)?,
            seconds("timeout_s", 10.0)?,
        );
        let authorities = options.remove("ca_file");
        let allow_http = [
            "allow_http",
            "aws_allow_http",
            "google_allow_http",
            "azure_allow_http",
        ];
        let allow_http = allow_http
            .iter()
            .filter_map(|name| options.get(*name))
            .any(|value| value == "true");
        Ok(Self {
            connect,
            answer,
            authorities,
            allow_http,
        })
    }

    fn connector(&self) -> Result<Connector, String> {
        let tls = match tls::client(self.authorities.as_deref().map(FilePath::new)) {
            // an unencrypted local store needs no CA certificates
            Err(_) if self.allow_http && self.authorities.is_none() => tls::without_roots()?,
            other => other?,
        };
        Ok(Connector {
            tls,
            connect: self.connect,
        })
    }

    /// Few, quick retries: an unresponsive store must be reported soon.
    fn retry(&self) -> RetryConfig {
        RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(50),
                max_backoff: Duration::from_secs(1),
                base: 3.0,
            },
            max_retries: 2,
            retry_timeout: self.answer,
        }
    }
}

type Options = BTreeMap<String, String>;

/// Signs payloads on unencrypted connections, unless an option disables signing. With TLS, signing
/// adds no protection but costs a third of the time of a store. Reads are verified in any case.
fn signing(options: &Options, own: &Own) -> Options {
    const NAME: &str = "unsigned_payload";
    let mut options = options.clone();
    let given = |name: &String| name.to_ascii_lowercase().ends_with(NAME);
    if !own.allow_http && !options.keys().any(given) {
        options.insert(NAME.to_owned(), "true".to_owned());
    }
    options
}

fn s3_hint(options: &Options) -> &'static str {
    let given = |part: &str| {
        options
            .keys()
            .any(|name| name.to_ascii_lowercase().contains(part))
    };
    match given("access_key")
        || given("skip_signature")
        || given("token_file")
        || given("container")
    {
        true => "",
        false => {
            ". No credentials were given, so the machine's own were asked for; give \
             access_key_id and secret_access_key, or \
             skip_signature for a bucket that is open to all"
        }
    }
}

/// The URL without parts that may be secret.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // fails for URLs without a host, which have no password
    let _ = url.set_password(None);
    url.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsigned(given: &[(&str, &str)]) -> Option<String> {
        let pairs = given
            .iter()
            .map(|&(name, value)| (name.into(), value.into()));
        let mut options: Options = pairs.collect();
        let own = Own::take(&mut options).unwrap();
        let mut signing = signing(&options, &own).into_iter();
        signing.find_map(|(name, value)| name.ends_with("unsigned_payload").then_some(value))
    }

    #[test]
    fn payloads_are_signed_where_the_connection_is_not_encrypted() {
        assert_eq!(unsigned(&[]).as_deref(), Some("true"));
        assert_eq!(unsigned(&[("allow_http", "true")]), None);
        for name in ["unsigned_payload", "AWS_unsigned_payload"] {
            assert_eq!(unsigned(&[(name, "false")]).as_deref(), Some("false"));
        }
        let plain = [("allow_http", "true"), ("unsigned_payload", "true")];
        assert_eq!(unsigned(&plain).as_deref(), Some("true"));
    }
}
