//! GGUF files: a header that parses has its tensors inside the file and apart from each other; its
//! tokenizer encodes, or is an error. Errors name a place in the file.

use crate::common::{check_message, check_tokenizer};
use penstock_checkpoint::{GgufHeader, dequantize};
use penstock_tokenizer::TextModel;

/// Elements that a tensor is dequantized up to.
const MOST_ELEMENTS: usize = 1 << 16;

pub fn check(file: &[u8]) {
    let header = match GgufHeader::parse(file) {
        Ok(header) => header,
        Err(fault) => {
            assert!(fault.offset <= file.len(), "{fault}");
            return check_message(&fault);
        }
    };
    let mut tensors: Vec<_> = header.tensors.iter().collect();
    tensors.sort_by_key(|tensor| (tensor.range.start, tensor.range.end));
    for pair in tensors.windows(2) {
        assert!(pair[0].range.end <= pair[1].range.start, "{pair:?}");
    }
    for tensor in tensors {
        let elements: usize = tensor.shape.iter().product();
        let data = &file[tensor.range.clone()];
        assert_eq!(tensor.dtype.bytes_for(elements), Some(data.len()));
        if elements <= MOST_ELEMENTS {
            dequantize(tensor.dtype, data, &mut vec![0.0; elements]);
        }
    }
    TextModel::end_tokens(&header.metadata);
    match TextModel::from_gguf(&header.metadata, None) {
        Ok(model) => check_tokenizer(&model.tokenizer),
        Err(error) => check_message(&error),
    }
}
