//! Bump allocator for weights and KV pools on huge pages. Matrices share regions, because most are
//! smaller than a huge page.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use penstock_memory::Region;

/// Size of a shared region in bytes.
const SHARED: usize = 32 << 20;
/// Minimum size in bytes of an allocation that gets a region of its own.
const OWN: usize = 8 << 20;

/// The shared region that small allocations are taken from, and the number of its bytes in use.
static CURRENT: Mutex<Option<(Arc<Region>, usize)>> = Mutex::new(None);

/// Allocates `bytes` of zeroed memory, aligned to 64 bytes, valid while the region is held. `None`
/// if the system is out of memory.
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
