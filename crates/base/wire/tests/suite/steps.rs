//! Contradictory extras of a STEP.
use penstock_wire::{EngineFrame, Frame, Output, Step, TierTokens};

fn encoded(frame: &EngineFrame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes).map(|()| bytes).unwrap()
}

#[test]
fn more_tokens_from_tiers_than_cached_ones_are_refused() {
    let output = Output {
        cached_tokens: 48,
        tier_tokens: TierTokens {
            ram: 32,
            disk: 0,
            remote: 17,
        },
        ..Output::default()
    };
    let step = Step {
        outputs: vec![output],
        ..Step::default()
    };
    let bytes = encoded(&EngineFrame::Step(step));
    let error = EngineFrame::decode(0x20, &bytes[5..]).unwrap_err();
    assert_eq!(
        (error.field, error.offset),
        ("tier tokens", bytes.len() - 17)
    );
}

#[test]
fn a_vector_of_broken_numbers_is_refused() {
    let output = Output {
        vector: vec![0.5, 1.5],
        ..Output::default()
    };
    let step = Step {
        outputs: vec![output],
        ..Step::default()
    };
    let mut bytes = encoded(&EngineFrame::Step(step));
    let length = bytes.len() - 12;
    bytes[length] = 7;
    bytes.pop();
    let error = EngineFrame::decode(0x20, &bytes[5..]).unwrap_err();
    assert_eq!((error.field, error.offset), ("vector", bytes.len() - 5 - 7));
}
