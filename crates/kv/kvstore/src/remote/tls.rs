//! Trusted certificates for encrypted connections.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Trusts no certificate, for unencrypted stores.
#[cfg(feature = "object-store")]
pub(super) fn without_roots() -> Result<ClientConfig, String> {
    with_roots(RootCertStore::empty())
}

/// Trusts the CA certificates in the PEM file `authorities`, else the platform's. The error
/// describes the problem and the remedy.
pub(super) fn client(authorities: Option<&Path>) -> Result<ClientConfig, String> {
    let roots = match authorities {
        Some(path) => from_file(path)?,
        None => of_the_platform()?,
    };
    with_roots(roots)
}

fn with_roots(roots: RootCertStore) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn from_file(path: &Path) -> Result<RootCertStore, String> {
    let shown = path.display();
    let mut store = RootCertStore::empty();
    let found = CertificateDer::pem_file_iter(path).map_err(|error| format!("{shown}: {error}"))?;
    for certificate in found {
        let certificate = certificate.map_err(|error| format!("{shown}: {error}"))?;
        store
            .add(certificate)
            .map_err(|error| format!("{shown}: {error}"))?;
    }
    match store.is_empty() {
        true => Err(format!("{shown} has no certificate in PEM form")),
        false => Ok(store),
    }
}

fn of_the_platform() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(found.certs);
    if store.is_empty() {
        let why: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        return Err(format!(
            "no certificate authorities on this machine ({}); install ca-certificates or name a \
             file of them",
            why.join("; ")
        ));
    }
    Ok(store)
}
