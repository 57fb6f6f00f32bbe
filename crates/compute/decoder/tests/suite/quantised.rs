//! Checkpoints of integer codes (GPTQ, AWQ, compressed-tensors): the numbers that the codes stand
//! for, bit for bit, whole and partitioned between ranks; damaged files.

use std::path::{Path, PathBuf};

use crate::common::codes::{Form, Matrix, Zeros, form};
use crate::common::files::written;
use crate::common::ranks::{Cuts, Way, load_cut};
use crate::common::{
    Answer, BLOCKS, Compute, GREEDY, Request, Scratch, Stored, allocated, checkpoint, isas,
    options, reference, run, safetensors, spec,
};
use penstock_checkpoint::Checkpoint;
use penstock_decoder::{Decoder, DecoderSpec, Numerics, Options};
use penstock_kernels::{Isa, WeightFormat};
use serde_json::{Value, json};

const FAMILY: &str = "llama";
const HIDDEN: usize = 96;
/// Outputs of k, v, gate and up, and inputs of down.
const NARROW: usize = 32;
const ROLES: [(&str, &str, usize, usize); 7] = [
    ("q", "self_attn.q_proj", HIDDEN, HIDDEN),
    ("k", "self_attn.k_proj", NARROW, HIDDEN),
    ("v", "self_attn.v_proj", NARROW, HIDDEN),
    ("o", "self_attn.o_proj", HIDDEN, HIDDEN),
    ("gate", "mlp.gate_proj", NARROW, HIDDEN),
    ("up", "mlp.up_proj", NARROW, HIDDEN),
    ("down", "mlp.down_proj", HIDDEN, NARROW),
];
fn forms() -> Vec<Form> {
    use Zeros::{Absent, Middle, Random};
    let packed = form("packed", 4, Absent, Some("s4"));
    let gptq = form("gptq", 4, Random, None);
    vec![
        packed,
        Form {
            scales: "BF16",
            group: None,
            ..packed
        },
        form("packed", 4, Random, None),
        Form {
            scales: "F32",
            ..form("packed", 8, Absent, Some("w8"))
        },
        Form {
            group: Some(16),
            ..form("packed", 8, Absent, None)
        },
        form("gptq", 4, Middle, Some("s4")),
        gptq,
        Form {
            ordered: true,
            ..form("gptq", 4, Middle, None)
        },
        Form {
            group: None,
            ..form("gptq", 8, Middle, Some("w8"))
        },
        form("gptq", 8, Random, None),
        form("gptq_v2", 4, Middle, Some("s4")),
        form("gptq_v2", 4, Random, None),
        form("awq", 4, Absent, Some("s4")),
        form("awq", 4, Middle, Some("s4")),
        form("awq", 4, Random, None),
    ]
}

/// The recipe of a module's codes.
fn recipe(form: Form, module: &str) -> Value {
    let named = |name: &str| json!(format!("{module}.{name}"));
    let packed = form.layout == "packed";
    let mut codes = json!({
        "layout": form.layout,
        "bits": form.bits,
        "rows": 1,
        "scales": named(if packed { "weight_scale" } else { "scales" }),
    });
    if let Some(group) = form.group {
        codes["cols"] = json!(group);
    }
    if form.zeros != Zeros::Absent {
        codes["zeros"] = named(if packed {
            "weight_zero_point"
        } else {
            "qzeros"
        });
    }
    if packed {
        codes["shape"] = named("weight_shape");
    }
    if form.layout.starts_with("gptq") {
        codes["groups"] = named("g_idx");
    }
    let first = if packed { "weight_packed" } else { "qweight" };
    json!({"tensor": named(first), "codes": codes})
}

/// The fixture with random codes for all matrices of its layers.
struct Model {
    codes: Vec<Stored>,
    numbers: Vec<Stored>,
    weights: Value,
}

impl Model {
    fn new(form: Form) -> Self {
        let whole = Checkpoint::open(&checkpoint(FAMILY)).unwrap();
        let kept: Vec<&str> = whole
            .names()
            .filter(|name| !name.contains("_proj"))
            .collect();
        let plain = || crate::common::files::stored(&whole, &kept);
        let (mut codes, mut numbers, mut weights) = (plain(), plain(), spec(FAMILY).1);
        for layer in 0..2 {
            for (seed, (role, module, n, k)) in ROLES.into_iter().enumerate() {
                let module = format!("model.layers.{layer}.{module}");
                let matrix = Matrix::random(form, n, k, (10 * layer + seed) as u64);
                codes.extend(matrix.stored(form, &module));
                let bytes = matrix.numbers().into_iter().flat_map(f32::to_le_bytes);
                numbers.push(Stored {
                    name: format!("{module}.weight"),
                    dtype: "F32".to_owned(),
                    shape: vec![n, k],
                    bytes: bytes.collect(),
                });
                weights["layers"][layer][role] = recipe(form, &module);
            }
        }
        Self {
            codes,
            numbers,
            weights,
        }
    }

    fn written(&self, scratch: &Scratch) -> [PathBuf; 2] {
        [("codes", &self.codes), ("numbers", &self.numbers)].map(|(name, tensors)| {
            written(
                scratch,
                &format!("{name}.safetensors"),
                &safetensors(tensors),
            )
        })
    }
}

fn load(weights: &Value, path: &Path, set: &Options) -> Decoder {
    let spec = spec(FAMILY).0.to_string();
    let decoder = Decoder::load(&spec, &weights.to_string(), path, set);
    allocated(decoder.unwrap(), BLOCKS)
}

fn answer(decoder: &impl Compute, set: &Options) -> Answer {
    let reference = reference(FAMILY);
    let request = Request {
        prompt: reference.tokens,
        new_tokens: 4,
        sampling: GREEDY,
        logprobs: 20,
    };
    run(decoder, set, &[request], || 11).remove(0)
}

/// Mean difference of the prompt's log-probabilities.
fn off(got: &Answer, truth: &Answer) -> f64 {
    let pairs = got.prompt.iter().zip(&truth.prompt);
    let off = pairs.map(|(a, b)| f64::from((a.logprob - b.logprob).abs()));
    off.sum::<f64>() / truth.prompt.len() as f64
}

#[test]
fn codes_are_the_numbers_that_they_stand_for() {
    for form in forms() {
        let (scratch, model) = (Scratch::new("codes"), Model::new(form));
        let [codes, numbers] = model.written(&scratch);
        let exact = options(Isa::detect());
        let truth = answer(&load(&spec(FAMILY).1, &numbers, &exact), &exact);
        let whole = answer(&load(&model.weights, &codes, &exact), &exact);
        assert!(whole == truth, "{form:?} in f32");

        let parse = || DecoderSpec::parse(&spec(FAMILY).0.to_string()).unwrap();
        let cuts = Cuts::even(&parse(), 2, 1);
        let names = model.weights.to_string();
        let ranks = load_cut(Way::Ring, &parse, &names, codes.clone(), &exact, &cuts);
        let cut = off(&answer(&ranks, &exact), &truth);
        assert!(cut < 1e-3, "{form:?} cut: off by {cut}");

        for isa in isas() {
            let floats = WeightFormat::F32;
            let set = Options {
                numerics: Numerics::AsStored { floats },
                ..options(isa)
            };
            let decoder = load(&model.weights, &codes, &set);
            let named = &decoder.info().numerics;
            if let Some(held) = form.held {
                assert!(named.contains(held), "{form:?} on {isa}: {named}");
            }
            let rounded = off(&answer(&decoder, &set), &truth);
            println!("{form:?} as {named} on {isa}: off by {rounded:.4}");
            assert!(rounded < 0.1, "{form:?} on {isa}: off by {rounded}");
        }
    }
}

/// Words and zero points that gptqmodel 7.7, autoawq 0.2.9 and compressed-tensors 0.20 write for
/// the codes 0 to 7 with zero point 8.
#[test]
fn the_words_of_these_tests_are_the_words_of_the_tools() {
    let zeros = Zeros::Middle;
    for (layout, shape, word, zero) in [
        ("packed", [8, 8], 0x7654_3210, 0x8888_8888),
        ("gptq", [8, 8], 0x7654_3210, 0x7777_7777),
        ("gptq_v2", [8, 8], 0x7654_3210, 0x8888_8888),
        ("awq", [8, 8], 0x7531_6420, 0x8888_8888_u32),
    ] {
        let form = Form {
            group: None,
            ..form(layout, 4, zeros, None)
        };
        let [n, k] = shape;
        let mut matrix = Matrix::random(form, n, k, 1);
        for (at, code) in matrix.codes.iter_mut().enumerate() {
            *code = (if layout == "awq" { at / k } else { at % k }) as u32;
        }
        let tensors = matrix.stored(form, "m");
        let first = |end: &str| {
            let found = tensors.iter().find(|tensor| tensor.name.ends_with(end));
            u32::from_le_bytes(found.unwrap().bytes[..4].try_into().unwrap())
        };
        let packed = layout == "packed";
        assert_eq!(
            first(if packed { "weight_packed" } else { "qweight" }),
            word
        );
        assert_eq!(first(if packed { "zero_point" } else { "qzeros" }), zero);
    }
}

/// An error of loading names the tensor and the byte.
#[test]
fn damaged_codes_are_found_by_name() {
    let module = "model.layers.1.mlp.down_proj";
    let packed = form("packed", 4, Zeros::Random, None);
    let gptq = form("gptq", 4, Zeros::Random, None);
    let awq = form("awq", 4, Zeros::Random, None);
    let nan = |tensor: &mut Stored| tensor.bytes[2..4].copy_from_slice(&[0, 0x7e]);
    let infinite = |tensor: &mut Stored| tensor.bytes[..2].copy_from_slice(&[0, 0x7c]);
    let short = |tensor: &mut Stored| {
        let row = tensor.bytes.len() / tensor.shape[0];
        tensor.shape[0] -= 1;
        tensor.bytes.truncate(row * tensor.shape[0]);
    };
    let set_first = |value: u8| move |tensor: &mut Stored| tensor.bytes[0] = value;
    let typed = |dtype: &'static str| move |tensor: &mut Stored| tensor.dtype = dtype.to_owned();
    let renamed = |tensor: &mut Stored| tensor.name.push('x');
    type Damage<'a> = &'a dyn Fn(&mut Stored);
    let cases: [(Form, &str, Damage<'_>, &str); 14] = [
        (packed, "weight_packed", &short, "has shape [95, 4]"),
        (packed, "weight_scale", &short, "has shape [95, 1]"),
        (packed, "weight_zero_point", &short, "has shape [11, 1]"),
        (
            packed,
            "weight_shape",
            &set_first(3),
            "states the shape [3, 32], not [96, 32]",
        ),
        (
            packed,
            "weight_scale",
            &nan,
            "in row 1 that is infinite or not a number",
        ),
        (packed, "weight_scale", &typed("I32"), "needs"),
        (packed, "weight_packed", &typed("F32"), "of type F32"),
        (packed, "weight_zero_point", &renamed, "no tensor"),
        (gptq, "qweight", &short, "has shape [3, 96]"),
        (gptq, "qzeros", &short, "has shape [0, 12]"),
        (gptq, "scales", &infinite, "in row 0 that is infinite"),
        (gptq, "g_idx", &set_first(1), "puts input 0 in group 1 of 1"),
        (gptq, "g_idx", &short, "has shape [31]"),
        (awq, "qweight", &short, "has shape [31, 12]"),
    ];
    for (form, name, damage, problem) in cases {
        let (scratch, mut model) = (Scratch::new("damaged-codes"), Model::new(form));
        let wanted = format!("{module}.{name}");
        let found = model.codes.iter_mut().find(|tensor| tensor.name == wanted);
        damage(found.unwrap());
        let file = written(&scratch, "codes.safetensors", &safetensors(&model.codes));
        let message = refusal(&model.weights, &file);
        assert!(
            message.contains(&wanted) && message.contains(problem),
            "{form:?}, {name}: {message}"
        );
        assert!(
            message.contains("codes.safetensors") || problem == "of type F32",
            "{message}"
        );
    }
}

fn refusal(weights: &Value, file: &Path) -> String {
    let spec = spec(FAMILY).0.to_string();
    let set = options(Isa::detect());
    let loaded = Decoder::load(&spec, &weights.to_string(), file, &set);
    loaded.err().expect("loaded").to_string()
}

#[test]
fn groups_that_do_not_divide_and_other_bits_are_refused() {
    let (scratch, form) = (Scratch::new("groups-of-codes"), forms()[0]);
    let model = Model::new(form);
    let [file, _] = model.written(&scratch);
    for (key, value, problem) in [
        (
            "cols",
            json!(64),
            "96 inputs, which groups of 64 do not divide",
        ),
        ("cols", json!(0), "groups of 0"),
        ("rows", json!(0), "groups of"),
        ("bits", json!(3), "codes of 3 bits"),
        ("layout", json!("marlin"), "weight recipes"),
    ] {
        let mut weights = model.weights.clone();
        weights["layers"][0]["q"]["codes"][key] = value;
        let message = refusal(&weights, &file);
        assert!(message.contains(problem), "{key}: {message}");
    }
}
