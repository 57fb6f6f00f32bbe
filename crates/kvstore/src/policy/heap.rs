//! A heap whose members can be moved and taken out: the order in which entries are given up.

/// Not in a heap.
pub(super) const NOWHERE: u32 = u32::MAX;

/// The smallest rank first; equal ranks in the order of their ids, so that the order never depends
/// on history. Where each id is stands in `places`, which several heaps with disjoint members may
/// share.
#[derive(Default)]
pub(super) struct Heap {
    nodes: Vec<(f64, u32)>,
}

impl Heap {
    pub(super) fn first(&self) -> Option<u32> {
        self.nodes.first().map(|node| node.1)
    }

    /// Puts `id` in, or moves it to its new rank.
    pub(super) fn put(&mut self, places: &mut [u32], id: u32, rank: f64) {
        let at = if places[id as usize] == NOWHERE {
            self.nodes.push((rank, id));
            self.nodes.len() - 1
        } else {
            let at = places[id as usize] as usize;
            self.nodes[at].0 = rank;
            at
        };
        self.settle(places, at);
    }

    /// Takes `id` out if it is there.
    pub(super) fn take(&mut self, places: &mut [u32], id: u32) {
        let at = std::mem::replace(&mut places[id as usize], NOWHERE);
        if at == NOWHERE {
            return;
        }
        self.nodes.swap_remove(at as usize);
        if (at as usize) < self.nodes.len() {
            self.settle(places, at as usize);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    fn settle(&mut self, places: &mut [u32], mut at: usize) {
        while at > 0 && less(self.nodes[at], self.nodes[(at - 1) / 2]) {
            self.swap(places, at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
        loop {
            let children = [2 * at + 1, 2 * at + 2];
            let known = children
                .into_iter()
                .filter(|&child| child < self.nodes.len());
            let Some(child) = known.reduce(|a, b| {
                if less(self.nodes[b], self.nodes[a]) {
                    b
                } else {
                    a
                }
            }) else {
                break;
            };
            if !less(self.nodes[child], self.nodes[at]) {
                break;
            }
            self.swap(places, at, child);
            at = child;
        }
        places[self.nodes[at].1 as usize] = at as u32;
    }

    fn swap(&mut self, places: &mut [u32], a: usize, b: usize) {
        self.nodes.swap(a, b);
        places[self.nodes[a].1 as usize] = a as u32;
        places[self.nodes[b].1 as usize] = b as u32;
    }
}

fn less(a: (f64, u32), b: (f64, u32)) -> bool {
    a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).is_lt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn first_is_the_smallest(steps in proptest::collection::vec((0_u32..40, 0_u32..50, any::<bool>()), 1..400)) {
            let mut heap = Heap::default();
            let mut places = vec![NOWHERE; 40];
            let mut model = std::collections::BTreeMap::new();
            for (id, rank, put) in steps {
                if put {
                    heap.put(&mut places, id, f64::from(rank));
                    model.insert(id, rank);
                } else {
                    heap.take(&mut places, id);
                    model.remove(&id);
                }
                let smallest = model.iter().map(|(&id, &rank)| (rank, id)).min();
                prop_assert_eq!(heap.first(), smallest.map(|found| found.1));
                prop_assert_eq!(heap.len(), model.len());
            }
        }
    }
}
