//! Server-side TLS: a certificate and its key from PEM files, reloaded when they change.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::Reloaded;

/// Paths of the certificate files.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate chain, the server's own certificate first.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Accepts TLS connections with the latest certificate.
#[derive(Debug, Clone)]
pub struct Tls {
    config: Arc<Reloaded<ServerConfig>>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A text that names the file and what is wrong with it.
    pub fn start(files: TlsFiles) -> Result<Self, String> {
        let watched = vec![files.certificate.clone(), files.key.clone()];
        let config = Reloaded::start(watched, move || read(&files))?;
        Ok(Self { config })
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.current())
    }
}

fn read(files: &TlsFiles) -> Result<ServerConfig, String> {
    let (certificate, key) = (&files.certificate, &files.key);
    let failed = |path: &PathBuf, error: &dyn std::fmt::Display| {
        format!("--ssl-certfile, --ssl-keyfile: {}: {error}", path.display())
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| failed(certificate, &error))?;
    if chain.is_empty() {
        return Err(failed(certificate, &"no certificate in PEM"));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, &error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(certificate, &error))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| failed(certificate, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
