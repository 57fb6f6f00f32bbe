//! Opening of paths, comparison of both containers, and the fingerprint.

use std::fs;

use crate::common::{GgufFile, Scratch, plain_gguf, safetensors, string, tiny};
use penstock_checkpoint::{Checkpoint, FormatError};

fn floats(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let tensor = checkpoint.tensor(name).unwrap();
    let mut out = vec![0.0; tensor.rows() * tensor.cols()];
    for (i, row) in out.chunks_exact_mut(tensor.cols()).enumerate() {
        tensor.dequantize_row(i, row);
    }
    out
}

#[test]
fn the_same_weights_read_from_both_containers() {
    let hf = Checkpoint::open(&tiny("llama3")).unwrap();
    let gguf = Checkpoint::open(&tiny("llama3.gguf")).unwrap();
    let pairs = [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        (
            "model.layers.1.mlp.down_proj.weight",
            "blk.1.ffn_down.weight",
        ),
        (
            "model.layers.0.self_attn.v_proj.weight",
            "blk.0.attn_v.weight",
        ),
    ];
    for (hf_name, gguf_name) in pairs {
        assert_eq!(
            hf.tensor(hf_name).unwrap().shape,
            gguf.tensor(gguf_name).unwrap().shape
        );
        assert_eq!(
            floats(&hf, hf_name),
            floats(&gguf, gguf_name),
            "{gguf_name}"
        );
    }
    let header = gguf.gguf().unwrap();
    assert_eq!(
        header.metadata["general.architecture"].as_str(),
        Some("llama")
    );
    assert_eq!(
        header.metadata["llama.attention.head_count"].as_int(),
        Some(4)
    );
}

#[test]
fn a_sharded_checkpoint_has_all_its_tensors() {
    let checkpoint = Checkpoint::open(&tiny("mistral")).unwrap();
    assert_eq!(checkpoint.names().count(), 2 * 9 + 3);
    assert_eq!(
        checkpoint.tensor("lm_head.weight").unwrap().shape,
        [256, 32]
    );
}

#[test]
fn paths_without_a_checkpoint_are_refused() {
    let scratch = Scratch::new("paths");
    let message = |path: &std::path::Path| Checkpoint::open(path).err().unwrap().to_string();
    assert!(message(scratch.path()).contains("neither model.safetensors nor"));
    assert!(message(&scratch.write("weights.bin", "PK")).contains("neither a GGUF file"));
    assert!(message(&scratch.write("empty.gguf", "")).contains("neither a GGUF file"));
    assert!(matches!(
        Checkpoint::open(&scratch.path().join("none")),
        Err(FormatError::Io { .. })
    ));
    assert!(message(std::path::Path::new("/dev/null")).contains("not a regular file"));
}

fn fingerprint(scratch: &Scratch, bytes: &[u8]) -> [u8; 32] {
    let path = scratch.write("x", bytes);
    let path = if bytes.starts_with(b"GGUF") {
        path
    } else {
        let renamed = path.with_extension("safetensors");
        fs::rename(&path, &renamed).unwrap();
        renamed
    };
    Checkpoint::open(&path).unwrap().fingerprint().unwrap()
}

#[test]
fn the_fingerprint_covers_metadata_names_types_shapes_and_both_ends() {
    let scratch = Scratch::new("fingerprint");
    let big = |name: &str, shape: &[u64], kind, data: &[u8]| {
        GgufFile::default()
            .entry("k", 8, &string("v"))
            .tensor(name, shape, kind, 0)
            .data(data)
            .build()
    };
    let zeros = vec![0; 16_384];
    let base = fingerprint(&scratch, &big("w", &[8192], 1, &zeros));
    assert_eq!(base, fingerprint(&scratch, &big("w", &[8192], 1, &zeros)));
    let changed_at = |at: usize| {
        let mut data = zeros.clone();
        data[at] = 1;
        fingerprint(&scratch, &big("w", &[8192], 1, &data))
    };
    let others = [
        fingerprint(&scratch, &big("v", &[8192], 1, &zeros)),
        fingerprint(&scratch, &big("w", &[8192], 30, &zeros)),
        fingerprint(&scratch, &big("w", &[4096, 2], 1, &zeros)),
        fingerprint(
            &scratch,
            &GgufFile::default()
                .tensor("w", &[8192], 1, 0)
                .data(&zeros[..])
                .build(),
        ),
        changed_at(0),
        changed_at(4095),
        changed_at(16_384 - 4096),
        changed_at(16_383),
    ];
    for (i, other) in others.iter().enumerate() {
        assert_ne!(base, *other, "variant {i}");
        assert!(
            !others[..i].contains(other),
            "variant {i} equals an earlier one"
        );
    }
    assert_eq!(
        base,
        changed_at(8000),
        "the middle of a large tensor is not read, as documented"
    );
}

#[test]
fn the_fingerprint_ignores_how_tensors_are_spread_over_files() {
    let scratch = Scratch::new("spread");
    let part = |name: &str, at: usize| {
        format!(
            r#""{name}":{{"dtype":"F32","shape":[1],"data_offsets":[{at},{}]}}"#,
            at + 4
        )
    };
    let whole = scratch.write(
        "whole.safetensors",
        safetensors(
            &format!("{{{},{}}}", part("b", 0), part("a", 4)),
            &[2, 2, 2, 2, 1, 1, 1, 1],
        ),
    );
    scratch.write(
        "1.safetensors",
        safetensors(&format!("{{{}}}", part("a", 0)), &[1; 4]),
    );
    scratch.write(
        "2.safetensors",
        safetensors(&format!("{{{}}}", part("b", 0)), &[2; 4]),
    );
    scratch.write(
        "model.safetensors.index.json",
        r#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#,
    );
    let sharded = Checkpoint::open(scratch.path()).unwrap();
    assert_eq!(
        Checkpoint::open(&whole).unwrap().fingerprint().unwrap(),
        sharded.fingerprint().unwrap()
    );
}

#[test]
fn a_checkpoint_is_shared_between_threads() {
    fn shareable<T: Send + Sync>() {}
    shareable::<Checkpoint>();
    let scratch = Scratch::new("threads");
    let checkpoint = Checkpoint::open(&scratch.write("m.gguf", plain_gguf().build())).unwrap();
    std::thread::scope(|scope| {
        let rows: Vec<_> = (0..3)
            .map(|i| {
                scope.spawn({
                    let c = &checkpoint;
                    move || c.tensor("matrix").unwrap().row_bytes(i)[0]
                })
            })
            .collect();
        let firsts: Vec<u8> = rows.into_iter().map(|row| row.join().unwrap()).collect();
        assert_eq!(firsts, [32, 52, 72]);
    });
}
