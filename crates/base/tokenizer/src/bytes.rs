//! The raw bytes of every token, for tokenizers with byte-string tokens.

/// Printable symbol of each byte in byte-level BPE (the GPT-2 table). Printable Latin-1 represents
/// itself; the other 68 bytes are numbered from U+0100.
pub(crate) fn byte_symbols() -> [char; 256] {
    let mut symbols = ['\0'; 256];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        let code = match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => u32::from(byte),
            _ => {
                next += 1;
                next - 1
            }
        };
        symbols[usize::from(byte)] = char::from_u32(code).unwrap_or('\0');
    }
    symbols
}

/// Decodes byte-level BPE token texts to bytes.
pub(crate) struct ByteSymbols {
    byte_of: [Option<u8>; 0x144],
}

impl ByteSymbols {
    pub(crate) fn new() -> Self {
        let mut byte_of = [None; 0x144];
        for (byte, symbol) in (0..=255u8).zip(byte_symbols()) {
            byte_of[symbol as usize] = Some(byte);
        }
        Self { byte_of }
    }

    /// Appends the bytes that `text` represents. A text with any other character represents itself.
    pub(crate) fn read(&self, text: &str, out: &mut Vec<u8>) {
        let start = out.len();
        for symbol in text.chars() {
            match self.byte_of.get(symbol as usize).copied().flatten() {
                Some(byte) => out.push(byte),
                None => {
                    out.truncate(start);
                    out.extend_from_slice(text.as_bytes());
                    return;
                }
            }
        }
    }
}

/// Appends the bytes of a SentencePiece token: `<0xNN>` is a byte, U+2581 is a space.
pub(crate) fn read_piece(text: &str, out: &mut Vec<u8>) {
    match byte_piece(text) {
        Some(byte) => out.push(byte),
        None => out.extend_from_slice(text.replace('\u{2581}', " ").as_bytes()),
    }
}

fn byte_piece(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2)
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// Bytes of all tokens in one allocation.
#[derive(Debug)]
pub(crate) struct TokenBytes {
    bytes: Vec<u8>,
    /// Token i is `bytes[ends[i - 1]..ends[i]]`.
    ends: Vec<usize>,
}

impl TokenBytes {
    pub(crate) fn with_capacity(tokens: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(tokens * 8),
            ends: Vec::with_capacity(tokens),
        }
    }

    /// Appends the next token: `write` appends its bytes to the buffer.
    pub(crate) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    /// Length of the longest token in bytes, at least 1.
    pub(crate) fn longest(&self) -> usize {
        let starts = std::iter::once(&0).chain(&self.ends);
        let lengths = self.ends.iter().zip(starts).map(|(end, start)| end - start);
        lengths.max().unwrap_or(1).max(1)
    }

    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let index = usize::try_from(id).ok()?;
        let end = *self.ends.get(index)?;
        let start = index
            .checked_sub(1)
            .map_or(0, |previous| self.ends[previous]);
        Some(&self.bytes[start..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_table_is_a_bijection_with_known_entries() {
        let symbols = byte_symbols();
        let distinct: std::collections::HashSet<char> = symbols.into_iter().collect();
        assert_eq!(distinct.len(), 256);
        assert_eq!(symbols[usize::from(b' ')], 'Ġ');
        assert_eq!(symbols[usize::from(b'\n')], 'Ċ');
        assert_eq!(symbols[0xAD], '\u{143}');
    }

    #[test]
    fn byte_level_text_with_a_foreign_character_stands_for_itself() {
        let table = ByteSymbols::new();
        let mut out = b"x".to_vec();
        table.read("Ġa", &mut out);
        assert_eq!(out, b"x a");
        table.read("é｜", &mut out);
        assert_eq!(out, "x aé｜".as_bytes());
    }

    #[test]
    fn pieces_become_bytes_and_spaces() {
        let mut out = Vec::new();
        for text in ["<0xE2>", "▁a▁", "<0x>", "<0xZZ>"] {
            read_piece(text, &mut out);
        }
        assert_eq!(out, b"\xE2 a <0x><0xZZ>");
    }
}
