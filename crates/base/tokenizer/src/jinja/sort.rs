//! A stable sort with a fallible comparison. The standard sort cannot stop at an error, and may
//! panic on an inconsistent order, for example with NaN.

use super::error::Error;

/// The items in ascending order by `is_less`; equal ones keep their order.
///
/// # Errors
/// The first error of `is_less`.
pub(super) fn sorted<T>(
    mut items: Vec<T>,
    is_less: &mut impl FnMut(&T, &T) -> Result<bool, Error>,
) -> Result<Vec<T>, Error> {
    if items.len() < 2 {
        return Ok(items);
    }
    let behind = items.split_off(items.len() / 2);
    let mut left = sorted(items, is_less)?.into_iter().peekable();
    let mut right = sorted(behind, is_less)?.into_iter().peekable();
    let mut merged = Vec::with_capacity(left.len() + right.len());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let next = if is_less(b, a)? {
            right.next()
        } else {
            left.next()
        };
        merged.extend(next);
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}
