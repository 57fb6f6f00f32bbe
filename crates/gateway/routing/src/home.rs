//! Home replica of a prompt or session, by rendezvous hashing (Thaler and Ravishankar, 1998). When
//! a replica joins or leaves, a key moves only if that replica becomes or was its home. The home
//! depends only on the key and the replicas' addresses, so that independent gateways agree.

use crate::request::mix;

/// Position in `addresses` of the home of `key`; `None` without addresses.
pub(crate) fn home<'a>(key: u64, addresses: impl Iterator<Item = &'a str>) -> Option<usize> {
    let weight = |address: &str| mix(key ^ mix(name(address)));
    let weighed = addresses.map(weight).enumerate();
    weighed.max_by_key(|(_, weight)| *weight).map(|(at, _)| at)
}

/// FNV-1a: stable across versions, unlike the standard library's hash.
fn name(address: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    address.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}
