//! Compares the queue with a model: a list that is searched from end to end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use crate::flow::queue::{Bounds, Item, Queue, Ticket};

const MOST_COST: u64 = 50;
const BOUNDS: Bounds = Bounds {
    requests: 12,
    bytes: 300,
};

#[derive(Debug, Clone)]
enum Act {
    Push {
        priority: i32,
        tenant: usize,
        cost: u64,
    },
    Pop,
    Remove(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (-1..2i32, 0..4usize, 0..=MOST_COST).prop_map(|(priority, tenant, cost)| Act::Push {
            priority,
            tenant,
            cost
        }),
        4 => Just(Act::Pop),
        1 => any::<usize>().prop_map(Act::Remove),
    ]
}

/// A waiting request in the model.
#[derive(Debug)]
struct One {
    priority: i32,
    tenant: usize,
    number: u64,
    cost: u64,
    ticket: Ticket,
}

#[derive(Debug, Default)]
struct Model {
    waiting: Vec<One>,
    pushed: u64,
    /// By priority and pair of tenants: the cost served to the first while the second waited too.
    given: BTreeMap<(i32, usize, usize), u64>,
}

impl Model {
    fn band(&self, priority: i32) -> impl Iterator<Item = &One> {
        self.waiting
            .iter()
            .filter(move |one| one.priority == priority)
    }

    fn tenants(&self, priority: i32) -> BTreeSet<usize> {
        self.band(priority).map(|one| one.tenant).collect()
    }

    /// Checks that the popped request was the right one, and that the cost served stays fair.
    fn popped(&mut self, number: u64) {
        let at = self.waiting.iter().position(|one| one.number == number);
        let at = at.expect("it was lost, or is given twice");
        let highest = self.waiting.iter().map(|one| one.priority).max();
        let (priority, tenant) = (self.waiting[at].priority, self.waiting[at].tenant);
        assert_eq!(Some(priority), highest);
        let first = self.band(priority).find(|one| one.tenant == tenant);
        assert_eq!(first.map(|one| one.number), Some(number), "out of order");
        let both = self.tenants(priority);
        let cost = self.waiting.remove(at).cost.max(1);
        for other in both.into_iter().filter(|other| *other != tenant) {
            *self.given.entry((priority, tenant, other)).or_default() += cost;
            let given = |a, b| self.given.get(&(priority, a, b)).copied().unwrap_or(0);
            let (own, others) = (given(tenant, other), given(other, tenant));
            assert!(own.abs_diff(others) <= 2 * MOST_COST, "{own} and {others}");
        }
        self.forget(priority, tenant);
    }

    /// Forgets the cost served to a tenant without waiting requests: it has no claim to a share.
    fn forget(&mut self, priority: i32, tenant: usize) {
        if !self.tenants(priority).contains(&tenant) {
            self.given
                .retain(|(of, a, b), _| *of != priority || (*a != tenant && *b != tenant));
        }
    }
}

fn run(acts: Vec<Act>) {
    let names: Vec<Arc<str>> = (0..4).map(|at| format!("tenant {at}").into()).collect();
    let (mut queue, mut model) = (Queue::default(), Model::default());
    for act in acts {
        match act {
            Act::Push {
                priority,
                tenant,
                cost,
            } => {
                let number = model.pushed;
                model.pushed += 1;
                let item = Item {
                    value: number,
                    bytes: cost as usize,
                    cost,
                };
                let bytes: u64 = model.band(priority).map(|one| one.cost).sum();
                let fits = model.band(priority).count() < BOUNDS.requests
                    && (bytes + cost) as usize <= BOUNDS.bytes;
                let pushed = queue.push(priority, &names[tenant], item, BOUNDS);
                assert_eq!(pushed.is_ok(), fits);
                model.waiting.extend(pushed.ok().map(|ticket| One {
                    priority,
                    tenant,
                    number,
                    cost,
                    ticket,
                }));
            }
            Act::Pop => match queue.pop() {
                Some(number) => model.popped(number),
                None => assert!(model.waiting.is_empty()),
            },
            Act::Remove(at) if !model.waiting.is_empty() => {
                let one = model.waiting.remove(at % model.waiting.len());
                assert_eq!(queue.remove(&one.ticket), Some(one.number));
                assert_eq!(queue.remove(&one.ticket), None, "twice");
                model.forget(one.priority, one.tenant);
            }
            Act::Remove(_) => {}
        }
        assert_eq!(queue.len(), model.waiting.len());
        for (priority, requests, bytes) in queue.bands() {
            let sum: u64 = model.band(priority).map(|one| one.cost).sum();
            assert_eq!(
                (requests, bytes as u64),
                (model.band(priority).count(), sum)
            );
        }
    }
    while let Some(number) = queue.pop() {
        model.popped(number);
    }
    assert!(model.waiting.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks bounds, strict priority, order within a tenant and fairness between waiting tenants,
    /// and that every request comes out exactly once.
    #[test]
    fn it_does_what_a_list_does(acts in prop::collection::vec(act(), 0..200)) {
        run(acts);
    }
}

fn push(queue: &mut Queue<u64>, tenant: &str, value: u64, cost: u64) {
    let item = Item {
        value,
        bytes: 0,
        cost,
    };
    let bounds = Bounds {
        requests: usize::MAX,
        bytes: usize::MAX,
    };
    assert!(queue.push(0, &tenant.into(), item, bounds).is_ok());
}

/// A popped request that is put back is again before all later ones, and its tenant pays nothing
/// for the first attempt.
#[test]
fn what_is_put_back_keeps_its_place() {
    let item = |value: u64| Item {
        value,
        bytes: 1,
        cost: 10,
    };
    let bounds = Bounds {
        requests: 4,
        bytes: 4,
    };
    let mut queue = Queue::default();
    let (a, b) = ("a".into(), "b".into());
    let first = queue.push(0, &a, item(1), bounds).unwrap();
    queue.push(0, &a, item(2), bounds).unwrap();
    queue.push(0, &b, item(3), bounds).unwrap();
    assert_eq!(queue.pop(), Some(1));
    let again = queue.put_back(Some(first.clone()), 0, &a, item(1));
    assert_eq!(again, first);
    // two requests that were refused after they went on without waiting
    let early = queue.put_back(None, 0, &a, item(4));
    queue.put_back(None, 0, &a, item(5));
    assert_eq!(queue.len(), 5, "beyond its bound");
    assert_eq!(queue.remove(&early), Some(4));
    let order: Vec<u64> = std::iter::from_fn(|| queue.pop()).collect();
    assert_eq!(order, [5, 3, 1, 2]);
    assert_eq!(queue.bands().count(), 0);
}

/// A tenant that always has a single request waiting gets no more than a tenant with a long queue.
#[test]
fn coming_back_one_by_one_is_no_advantage() {
    let mut queue = Queue::default();
    (0..100).for_each(|_| push(&mut queue, "many", 0, 10));
    push(&mut queue, "one by one", 1, 10);
    let mut given = [0; 2];
    for _ in 0..100 {
        let value = queue.pop().expect("there are more");
        given[value as usize] += 1;
        if value == 1 {
            push(&mut queue, "one by one", 1, 10);
        }
    }
    assert_eq!(given, [50, 50]);
}

/// A tenant with costly requests is served in its turn, however many new tenants come; tenants
/// without requests are not kept.
#[test]
fn new_tenants_hold_up_no_old_one() {
    let mut queue = Queue::default();
    (0..2).for_each(|_| push(&mut queue, "stays", 0, 1000));
    let mut others = 0;
    for name in 0..3000 {
        push(&mut queue, &format!("{name}"), 1, 1);
        others += queue.pop().expect("there are two");
    }
    assert_eq!(others, 2998);
    assert_eq!(queue.tenants(0), 2);
}
