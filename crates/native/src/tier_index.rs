//! The index of the RAM tier: which block is in which slot, and which blocks are evicted
//! (`penstock_kvstore::eviction`).

use penstock_kvstore::Digest;
use penstock_kvstore::eviction::{IndexError, IndexOptions, Rule, TierIndex as Index};
use pyo3::exceptions::{PyAssertionError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::prefix::{digest, of_group};

/// Digests from an iterable of 32-byte values.
fn names(digests: &Bound<'_, PyAny>) -> PyResult<Vec<Digest>> {
    let items = digests.try_iter()?;
    items
        .map(|item| digest(item?.cast::<PyBytes>()?.as_bytes(), "an item of digests"))
        .collect()
}

fn refused(error: IndexError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The slots of the RAM tier, and the digests of the blocks in them.
#[pyclass]
pub(crate) struct TierIndex {
    index: Index,
}

#[pymethods]
impl TierIndex {
    #[new]
    #[pyo3(signature = (slots, quota = 1.0, pin_share = 0.5, rule = "auto"))]
    fn new(slots: usize, quota: f64, pin_share: f64, rule: &str) -> PyResult<Self> {
        let rule = match rule {
            "auto" => Rule::Auto,
            "lru" => Rule::Lru,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "rule is {rule}; expected auto or lru"
                )));
            }
        };
        let options = IndexOptions {
            slots,
            quota,
            pin_share,
            rule,
        };
        let index = Index::new(&options).map_err(refused)?;
        Ok(Self { index })
    }

    /// Slots of the longest run of `digests` from index `start` on whose blocks are all stored.
    #[pyo3(signature = (digests, start = 0))]
    fn lookup(&mut self, digests: &Bound<'_, PyAny>, start: usize) -> PyResult<Vec<u32>> {
        let mut found = Vec::new();
        self.index.lookup(&names(digests)?, start, &mut found);
        Ok(found)
    }

    fn peek(&self, digests: &Bound<'_, PyAny>) -> PyResult<usize> {
        Ok(self.index.peek(&names(digests)?))
    }

    /// Assigns a slot to the block of each digest; -1 = refused, -2 = already stored.
    #[pyo3(signature = (digests, parent = None, awaited = false))]
    fn admit(
        &mut self,
        digests: &Bound<'_, PyAny>,
        parent: Option<&[u8]>,
        awaited: bool,
    ) -> PyResult<Vec<i64>> {
        let parent = parent.map(|parent| digest(parent, "parent")).transpose()?;
        let mut answers = Vec::new();
        self.index
            .admit(&names(digests)?, parent.as_ref(), awaited, &mut answers);
        Ok(answers)
    }

    fn commit(&mut self, digests: &Bound<'_, PyAny>) -> PyResult<()> {
        self.index.commit(&names(digests)?).map_err(refused)
    }

    fn abandon(&mut self, digests: &Bound<'_, PyAny>) -> PyResult<()> {
        self.index.abandon(&names(digests)?).map_err(refused)
    }

    fn hold(&mut self, slots: Vec<u32>) -> PyResult<()> {
        self.index.hold(&slots).map_err(refused)
    }

    fn release(&mut self, slots: Vec<u32>) -> PyResult<()> {
        self.index.release(&slots).map_err(refused)
    }

    fn pin(&mut self, digests: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.index.pin(&names(digests)?).map_err(refused)
    }

    fn unpin(&mut self, digests: &Bound<'_, PyAny>) -> PyResult<()> {
        self.index.unpin(&names(digests)?);
        Ok(())
    }

    fn remove(&mut self, digests: &Bound<'_, PyAny>) -> PyResult<usize> {
        Ok(self.index.remove(&names(digests)?))
    }

    #[pyo3(signature = (group = None))]
    fn clear(&mut self, group: Option<&[u8]>) -> PyResult<usize> {
        let group = group.map(of_group).transpose()?;
        Ok(self.index.clear(group))
    }

    /// Digests of blocks that were evicted since the last `admit` began, or since the last call of
    /// this method.
    fn take_left<'py>(&mut self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let left = self.index.take_left();
        left.iter().map(|digest| PyBytes::new(py, digest)).collect()
    }

    /// Slots in use and pinned now, and evictions and refusals since the start.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.index.stats();
        let counts = [
            ("used", stats.used as u64),
            ("pinned", stats.pinned as u64),
            ("evictions", stats.evictions),
            ("refused", stats.refused),
        ];
        let fields = PyDict::new(py);
        for (name, count) in counts {
            fields.set_item(name, count)?;
        }
        fields.set_item("gated", stats.gated)?;
        Ok(fields)
    }

    fn check(&self) -> PyResult<()> {
        self.index.check().map_err(PyAssertionError::new_err)
    }
}
