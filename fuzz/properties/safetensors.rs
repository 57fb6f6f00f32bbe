//! Safetensors files: a file that opens has tensors that fill its data without gaps. Errors name a
//! place in the file.

use crate::common::{Scratch, check_message};
use penstock_checkpoint::{Checkpoint, FormatError};

thread_local!(static SCRATCH: Scratch = Scratch::new("safetensors"));

pub fn check(file: &[u8]) {
    let path = SCRATCH.with(|scratch| scratch.write("model.safetensors", file));
    let checkpoint = match Checkpoint::open(&path) {
        Ok(checkpoint) => checkpoint,
        Err(FormatError::Malformed { fault, .. }) => {
            assert!(fault.offset <= file.len(), "{fault}");
            return check_message(&fault);
        }
        Err(error) => return check_message(&error),
    };
    let mut bytes = 0;
    for name in checkpoint.names() {
        let tensor = match checkpoint.tensor(name) {
            Ok(tensor) => tensor,
            Err(error) => return check_message(&error),
        };
        bytes += tensor.data.len();
        if tensor.cols() <= file.len() && tensor.rows() > 0 {
            tensor.dequantize_row(0, &mut vec![0.0; tensor.cols()]);
        }
    }
    let (length, _) = file.split_first_chunk().expect("the length of the header");
    assert_eq!(8 + u64::from_le_bytes(*length) as usize + bytes, file.len());
    checkpoint.fingerprint().expect("the file is there");
}
