//! The arena of weights and KV pools: parts of regions on huge pages, because most matrices are
//! smaller than such a page.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use penstock_memory::Region;

/// Size of a region that is shared, and of what gets a region of its own.
const SHARED: usize = 32 << 20;
const OWN: usize = 8 << 20;

/// The region that small requests are allocated from, and how much of it is taken.
static CURRENT: Mutex<Option<(Arc<Region>, usize)>> = Mutex::new(None);

/// `bytes` of zeroed memory, aligned to 64 bytes, valid while the region is held; `None` when the
/// system has none.
pub(crate) fn allocate(bytes: usize) -> Option<(Arc<Region>, NonNull<u8>)> {
    let bytes = bytes.checked_next_multiple_of(64)?;
    if bytes >= OWN {
        let region = Arc::new(Region::map(bytes).ok()?);
        let start = region.start();
        return Some((region, start));
    }
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    if current
        .as_ref()
        .is_none_or(|(_, taken)| taken + bytes > SHARED)
    {
        *current = Some((Arc::new(Region::map(SHARED).ok()?), 0));
    }
    let (region, taken) = current.as_mut()?;
    // SAFETY: taken + bytes <= SHARED, the region's length.
    let start = unsafe { region.start().add(*taken) };
    *taken += bytes;
    Some((Arc::clone(region), start))
}
