//! Requests to a Kubernetes API server.

use std::pin::pin;
use std::time::Duration;

use penstock_kube::{Api, ApiError};
use pyo3::exceptions::{PyConnectionError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// Interval at which a request in flight checks for Python signals, so that Ctrl-C ends it.
const SIGNALS: Duration = Duration::from_millis(100);

/// A client of one API server.
#[pyclass(frozen)]
pub(crate) struct KubernetesClient {
    api: Api,
    runtime: Runtime,
}

#[pymethods]
impl KubernetesClient {
    /// `cluster`: JSON of `penstock_kube::Cluster`.
    #[new]
    fn new(cluster: &str) -> PyResult<Self> {
        let cluster = serde_json::from_str(cluster);
        let cluster = cluster.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self {
            api: Api::new(cluster),
            runtime: Builder::new_current_thread().enable_all().build()?,
        })
    }

    /// Sends a request and returns status and body of the response. Releases the GIL meanwhile.
    fn request<'py>(
        &self,
        py: Python<'py>,
        method: &str,
        target: &str,
        content_type: &str,
        body: &[u8],
    ) -> PyResult<(u16, Bound<'py, PyBytes>)> {
        let mut answer = pin!(self.api.request(method, target, content_type, body));
        loop {
            let tick = async { timeout(SIGNALS, answer.as_mut()).await };
            match py.detach(|| self.runtime.block_on(tick)) {
                Ok(Ok((status, body))) => return Ok((status, PyBytes::new(py, &body))),
                Ok(Err(error @ ApiError::Credentials(_))) => {
                    return Err(PyValueError::new_err(error.to_string()));
                }
                Ok(Err(error)) => return Err(PyConnectionError::new_err(error.to_string())),
                Err(_) => py.check_signals()?,
            }
        }
    }
}
