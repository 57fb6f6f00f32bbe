//! The home of a key: one of the replicas, by rendezvous hashing (Thaler and Ravishankar, 1998).
//! When a replica comes or goes only the keys move that have to. It depends on the key and on the
//! replicas' addresses alone, so gateways that tell one another nothing find the same one.

use crate::request::mix;

/// Index of the address where `key` is at home; `None` without addresses.
pub(crate) fn home<'a>(key: u64, addresses: impl Iterator<Item = &'a str>) -> Option<usize> {
    let weight = |address: &str| mix(key ^ mix(name(address)));
    let weighed = addresses.map(weight).enumerate();
    weighed.max_by_key(|(_, weight)| *weight).map(|(at, _)| at)
}

/// FNV-1a: the same in all versions of the gateway, as the standard library's hash need not be.
fn name(address: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    address.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}
