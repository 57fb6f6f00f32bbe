//! Split GGUF files give the same model as the whole file.

use std::path::Path;

use crate::common::files::{parts, split};
use crate::common::logits::answer;
use crate::common::{
    BLOCKS, FAMILIES, NUMERICS, Scratch, allocated, checkpoint, options, reference, spec,
};
use penstock_decoder::{Decoder, Options};
use penstock_kernels::Isa;

fn load(family: &str, path: &Path, options: &Options) -> Decoder {
    let (spec, weights) = spec(family);
    let decoder = Decoder::load(&spec.to_string(), &weights.to_string(), path, options);
    allocated(decoder.unwrap(), BLOCKS)
}

#[test]
fn parts_are_the_whole_bit_for_bit() {
    for family in FAMILIES.iter().filter(|name| name.ends_with(".gguf")) {
        let (whole, reference) = (checkpoint(family), reference(family));
        for count in [2, 5] {
            let scratch = Scratch::new(&format!("parts-{family}-{count}"));
            let [first, _] = split(&scratch, &parts(&whole, count), "token_embd.weight");
            for (numerics, kv) in NUMERICS {
                let set = Options {
                    numerics,
                    kv,
                    ..options(Isa::detect())
                };
                let [of_parts, of_whole] = [&first, &whole].map(|path| {
                    let decoder = load(family, path, &set);
                    answer(&decoder, &set, &reference, || 40)
                });
                assert_eq!(of_parts.tokens.len(), reference.greedy.len());
                let same = of_parts == of_whole;
                assert!(same, "{family} in {count} parts, {numerics:?}");
            }
        }
    }
}
