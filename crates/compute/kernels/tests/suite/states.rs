//! Leases of state slots: exclusion of transfers and other sequences, and checks of positions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use penstock_kernels::{BlockBusy, SequenceStates, StateError, StateLayout, StateMemory};

fn memory() -> StateMemory {
    let layout = StateLayout {
        layers: 2,
        units: 3,
        numbers: 5,
    };
    StateMemory::new(layout, 8)
}

fn first(rows: usize, to: usize) -> SequenceStates {
    SequenceStates {
        start: 0,
        rows,
        from: None,
        to,
        saves: Vec::new(),
    }
}

fn after(start: usize, from: usize, to: usize) -> SequenceStates {
    SequenceStates {
        start,
        from: Some(from),
        ..first(1, to)
    }
}

fn step(memory: &mut StateMemory, sequences: &[SequenceStates]) -> Result<(), StateError> {
    memory
        .lease(sequences.to_vec())
        .map(|lease| lease.complete())
}

fn at(slot: usize, start: usize, position: Option<usize>) -> Result<(), StateError> {
    Err(StateError::Position {
        slot,
        start,
        position,
    })
}

#[test]
fn a_slot_has_the_bytes_of_all_units_and_layers() {
    let memory = memory();
    assert_eq!(memory.layout().slot_bytes(), 4 * 2 * 3 * 5);
    assert_eq!((memory.slots(), memory.handle().block_bytes()), (8, 120));
}

#[test]
fn a_state_is_read_only_at_its_position() {
    let mut memory = memory();
    let saving = SequenceStates {
        saves: vec![(3, 4), (7, 5)],
        ..first(10, 1)
    };
    step(&mut memory, &[saving]).unwrap();
    for (slot, position) in [(1, 10), (4, 3), (5, 7)] {
        step(&mut memory, &[after(position, slot, 2)]).unwrap();
        for wrong in [0, position - 1, position + 1] {
            let refused = step(&mut memory, &[after(wrong, slot, 2)]);
            assert_eq!(refused, at(slot, wrong, Some(position)));
        }
    }
    assert_eq!(step(&mut memory, &[after(1, 7, 2)]), at(7, 1, None));
    // In place, then at the new position only.
    step(&mut memory, &[after(10, 1, 1)]).unwrap();
    assert_eq!(step(&mut memory, &[after(10, 1, 1)]), at(1, 10, Some(11)));
    let refused = step(&mut memory, &[after(10, 1, 1)]).unwrap_err();
    let expected = "state slot 1 has the state after 11 tokens, not after 10";
    assert_eq!(refused.to_string(), expected);
}

/// A step that fails midway leaves states that cover some layers only.
#[test]
fn a_step_that_does_not_complete_leaves_no_state() {
    let mut memory = memory();
    step(&mut memory, &[first(10, 1)]).unwrap();
    drop(memory.lease(vec![after(10, 1, 1), first(2, 3)]).unwrap());
    assert_eq!(step(&mut memory, &[after(10, 1, 1)]), at(1, 10, None));
    assert_eq!(step(&mut memory, &[after(2, 3, 3)]), at(3, 2, None));
    // A lease that is refused changes nothing.
    step(&mut memory, &[first(4, 1)]).unwrap();
    assert_eq!(step(&mut memory, &[after(9, 1, 1)]), at(1, 9, Some(4)));
    step(&mut memory, &[after(4, 1, 1)]).unwrap();
}

#[test]
fn a_loaded_state_may_have_any_position_until_a_step_writes_it() {
    let mut memory = memory();
    step(&mut memory, &[first(10, 1)]).unwrap();
    for slot in [1, 2] {
        memory.handle().write(slot).unwrap().fill(1);
        step(&mut memory, &[after(32, slot, 5)]).unwrap();
        step(&mut memory, &[after(32, slot, slot)]).unwrap();
        assert_eq!(
            step(&mut memory, &[after(32, slot, slot)]),
            at(slot, 32, Some(33))
        );
    }
}

#[test]
fn transfers_and_steps_exclude_each_other() {
    let mut memory = memory();
    let handle = memory.handle();
    step(&mut memory, &[first(4, 0), first(4, 1)]).unwrap();
    let busy = |block, writing| Err(StateError::Busy(BlockBusy { block, writing }));
    let storing = handle.read(0).unwrap();
    assert_eq!(step(&mut memory, &[after(4, 0, 0)]), busy(0, false));
    step(&mut memory, &[after(4, 0, 2)]).unwrap();
    drop(storing);
    let loading = handle.write(1).unwrap();
    assert_eq!(step(&mut memory, &[after(4, 1, 2)]), busy(1, true));
    drop(loading);
    let lease = memory.lease(vec![after(4, 0, 2)]).unwrap();
    assert!(handle.read(0).is_some() && handle.write(0).is_none());
    assert!(handle.read(2).is_none() && handle.write(3).is_some());
    drop(lease);
    assert!(handle.write(0).is_some() && handle.write(2).is_some());
}

#[test]
fn impossible_leases_panic_and_leave_the_memory_usable() {
    let mut memory = memory();
    step(&mut memory, &[first(4, 0)]).unwrap();
    let saving = |saves: &[(usize, usize)]| SequenceStates {
        saves: saves.to_vec(),
        ..first(4, 1)
    };
    let cases = [
        vec![first(1, 8)],
        vec![after(4, 8, 1)],
        vec![first(0, 1)],
        vec![first(1, 1), first(1, 1)],
        vec![saving(&[(2, 1)])],
        vec![saving(&[(0, 2)])],
        vec![saving(&[(4, 2)])],
        vec![saving(&[(3, 2), (2, 3)])],
        vec![after(4, 0, 1), first(1, 0)],
        vec![first(1, 0), after(4, 0, 1)],
    ];
    for case in cases {
        let leased = catch_unwind(AssertUnwindSafe(|| memory.lease(case.clone()).is_ok()));
        assert!(leased.is_err(), "{case:?}");
        step(&mut memory, &[after(4, 0, 1)]).unwrap();
    }
    // Several sequences may read one state.
    step(&mut memory, &[after(4, 0, 1), after(4, 0, 2)]).unwrap();
}
