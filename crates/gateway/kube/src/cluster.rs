//! Address of an API server and the credentials for it.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use penstock_http::{Identity, Trust};
use serde::Deserialize;

use crate::credentials::Credentials;
use crate::plugin::Plugin;

/// A secret or a certificate. Files are read again for each request, so that a rotated token takes
/// effect.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Material {
    File(PathBuf),
    Text(String),
}

/// Hides the text, because it may be a secret.
impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "File({path:?})"),
            Self::Text(_) => write!(f, "Text(..)"),
        }
    }
}

/// An API server and the credentials for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// URL such as `https://10.96.0.1:443`, optionally with a base path that comes before `/api`.
    pub server: String,
    /// CA certificates for the server, in PEM format; `None`: those of the platform.
    pub authorities: Option<Material>,
    pub token: Option<Material>,
    /// Client certificate in PEM format. Requires `key`.
    pub certificate: Option<Material>,
    pub key: Option<Material>,
    /// Command that prints a token or a certificate, which overrides `token` or `certificate`.
    pub exec: Option<Plugin>,
}

impl Cluster {
    /// # Errors
    /// Describes the problem and names the file.
    pub(crate) fn read(&self) -> Result<Credentials, String> {
        let part = |material: &Option<Material>| material.as_ref().map(read).transpose();
        let identity = match (part(&self.certificate)?, part(&self.key)?) {
            (Some(chain), Some(key)) => Some(Identity { chain, key }),
            _ => None,
        };
        let authorities = part(&self.authorities)?;
        let token = part(&self.token)?;
        Ok(Credentials {
            trust: Trust {
                authorities,
                identity,
            },
            token: token.map(|token| token.trim().to_owned()),
        })
    }
}

fn read(material: &Material) -> Result<String, String> {
    match material {
        Material::Text(text) => Ok(text.clone()),
        Material::File(path) => {
            fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_in_the_log() {
        let cluster: Cluster = serde_json::from_str(
            r#"{"server": "https://a", "token": {"text": "hush"}, "key": {"file": "/k"}}"#,
        )
        .unwrap();
        let text = format!("{cluster:?}");
        assert!(text.contains("/k") && !text.contains("hush"), "{text}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let cluster = Cluster {
            token: Some(Material::File("/nowhere/token".into())),
            ..Cluster::default()
        };
        let error = cluster.read().err().unwrap();
        assert!(error.starts_with("/nowhere/token: "), "{error}");
    }
}
