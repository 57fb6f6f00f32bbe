//! Specs with short convolutions.

use crate::common::spec;
use penstock_decoder::DecoderSpec;
use serde_json::{Value, json};

/// The error for a model whose only kind of layer has this mixer.
fn refusal(mixer: &Value) -> String {
    let (mut spec, _) = spec("llama");
    spec["kinds"][0]["mixer"] = mixer.clone();
    let refused = DecoderSpec::parse(&spec.to_string());
    refused.err().unwrap().to_string()
}

#[test]
fn impossible_sizes_are_named() {
    let convolution = json!({"kind": "conv", "channels": 96, "kernel": 3, "units": 2});
    let mut cases = vec![("units", 5, "mixer.units = 5 does not divide the 96")];
    for size in [0, 1, 17, 1u64 << 31] {
        cases.push(("kernel", size, "mixer.kernel"));
    }
    for (key, what) in [("channels", "mixer.channels"), ("units", "mixer.units")] {
        cases.extend([0, 1u64 << 31].map(|size| (key, size, what)));
    }
    for (key, size, what) in cases {
        let mut mixer = convolution.clone();
        mixer[key] = json!(size);
        let message = refusal(&mixer);
        assert!(message.contains(what), "{mixer}: {message:?}");
    }
    assert_eq!(
        refusal(&convolution),
        "a model without attention layers is not supported yet"
    );
}
