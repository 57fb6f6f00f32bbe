//! Row order of interleaved rotation, in which some model families store their weights.

use crate::recipe::Recipe;

/// Row blocks (heads) stored in interleaved rotation order; unrotated rows at a block's start keep
/// their place.
#[derive(Clone, Copy)]
pub(crate) struct Interleaved {
    block: usize,
    unrotated: usize,
}

impl Interleaved {
    pub(crate) fn of(recipe: &Recipe) -> Option<Self> {
        let unrotated = recipe.unrotated.unwrap_or(0);
        let block = recipe.interleaved?;
        Some(Self { block, unrotated })
    }
}

/// Index of the stored row for output feature `row`, where `row` is an index in half-split order.
///
/// Half-split order puts the first items of all pairs before the second items; interleaved order
/// keeps the items of a pair adjacent.
pub(crate) fn stored_row(row: usize, interleaved: Option<Interleaved>) -> usize {
    let Some(Interleaved { block, unrotated }) = interleaved else {
        return row;
    };
    let (start, i) = (row / block * block + unrotated, row % block);
    let half = (block - unrotated) / 2;
    match i.checked_sub(unrotated) {
        Some(i) => start + i % half * 2 + i / half,
        None => row,
    }
}
