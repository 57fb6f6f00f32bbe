//! Decodes the subset of MessagePack that batches of KV events use. Values are read in place.

/// Malformed input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed: {0}")]
pub struct Malformed(pub(crate) &'static str);

/// One value, or the head of an array or a map.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Token<'a> {
    Nil,
    Bool(bool),
    Unsigned(u64),
    /// Negative.
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    Array(usize),
    /// A map, with its number of pairs.
    Map(usize),
    Extension,
}

/// The unread bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    /// A big-endian number of `count` bytes, at most 8.
    fn number(&mut self, count: usize) -> Result<u64, Malformed> {
        let bytes = self.take(count)?;
        Ok(bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn length(&mut self, count: usize) -> Result<usize, Malformed> {
        Ok(usize::try_from(self.number(count)?).unwrap_or(usize::MAX))
    }

    /// Checks the length of an array or map: each value takes at least one byte.
    fn counted(&self, count: usize, each: usize) -> Result<usize, Malformed> {
        match count.saturating_mul(each) <= self.0.len() {
            true => Ok(count),
            false => Err(Malformed("a list is longer than the rest")),
        }
    }

    fn signed(&mut self, count: usize) -> Result<Token<'a>, Malformed> {
        let shift = 64 - 8 * count as u32;
        let value = (self.number(count)? << shift) as i64 >> shift;
        Ok(u64::try_from(value).map_or(Token::Negative(value), Token::Unsigned))
    }

    fn array(&self, count: usize) -> Result<Token<'a>, Malformed> {
        Ok(Token::Array(self.counted(count, 1)?))
    }

    fn map(&self, count: usize) -> Result<Token<'a>, Malformed> {
        Ok(Token::Map(self.counted(count, 2)?))
    }

    pub(crate) fn next(&mut self) -> Result<Token<'a>, Malformed> {
        let head = self.take(1)?[0];
        Ok(match head {
            0x00..=0x7f => Token::Unsigned(u64::from(head)),
            0x80..=0x8f => self.map(usize::from(head & 0x0f))?,
            0x90..=0x9f => self.array(usize::from(head & 0x0f))?,
            0xa0..=0xbf => Token::Text(self.take(usize::from(head & 0x1f))?),
            0xc0 => Token::Nil,
            0xc1 => return Err(Malformed("there is no such type")),
            0xc2 | 0xc3 => Token::Bool(head == 0xc3),
            0xc4..=0xc6 => {
                let length = self.length(1 << (head - 0xc4))?;
                Token::Bytes(self.take(length)?)
            }
            0xc7..=0xc9 => {
                let length = self.length(1 << (head - 0xc7))?;
                self.take(length.saturating_add(1))?;
                Token::Extension
            }
            0xca => Token::Float(f64::from(f32::from_bits(self.number(4)? as u32))),
            0xcb => Token::Float(f64::from_bits(self.number(8)?)),
            0xcc..=0xcf => Token::Unsigned(self.number(1 << (head - 0xcc))?),
            0xd0..=0xd3 => self.signed(1 << (head - 0xd0))?,
            0xd4..=0xd8 => {
                self.take((1 << (head - 0xd4)) + 1)?;
                Token::Extension
            }
            0xd9..=0xdb => {
                let length = self.length(1 << (head - 0xd9))?;
                Token::Text(self.take(length)?)
            }
            0xdc | 0xdd => {
                let count = self.length(2 << (head - 0xdc))?;
                self.array(count)?
            }
            0xde | 0xdf => {
                let count = self.length(2 << (head - 0xde))?;
                self.map(count)?
            }
            0xe0..=0xff => Token::Negative(i64::from(head as i8)),
        })
    }

    /// The next value in encoded form, including nested values.
    pub(crate) fn value(&mut self) -> Result<Self, Malformed> {
        let before = self.0;
        let mut left = 1usize;
        while left > 0 {
            left -= 1;
            match self.next()? {
                Token::Array(count) => left += count,
                Token::Map(pairs) => left += 2 * pairs,
                _ => {}
            }
        }
        Ok(Self(&before[..before.len() - self.0.len()]))
    }

    /// The length of an array, whose values follow.
    pub(crate) fn list(&mut self) -> Result<usize, Malformed> {
        match self.next()? {
            Token::Array(count) => Ok(count),
            _ => Err(Malformed("a list is expected")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_form_of_a_number_is_read() {
        let cases: [(&[u8], Token<'_>); 12] = [
            (&[0x07], Token::Unsigned(7)),
            (&[0xcc, 200], Token::Unsigned(200)),
            (&[0xcd, 1, 0], Token::Unsigned(256)),
            (&[0xce, 0, 1, 0, 0], Token::Unsigned(65_536)),
            (
                &[0xcf, 255, 0, 0, 0, 0, 0, 0, 1],
                Token::Unsigned(0xff << 56 | 1),
            ),
            (&[0xff], Token::Negative(-1)),
            (&[0xd0, 0x80], Token::Negative(-128)),
            (&[0xd1, 0x7f, 0xff], Token::Unsigned(32_767)),
            (&[0xd2, 255, 255, 255, 0], Token::Negative(-256)),
            (
                &[0xd3, 255, 255, 255, 255, 255, 255, 255, 254],
                Token::Negative(-2),
            ),
            (&[0xca, 0x3f, 0xc0, 0, 0], Token::Float(1.5)),
            (&[0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0], Token::Float(1.5)),
        ];
        for (bytes, wanted) in cases {
            let mut reader = Reader(bytes);
            assert_eq!(reader.next(), Ok(wanted));
            assert!(reader.0.is_empty());
        }
    }

    #[test]
    fn texts_bytes_lists_and_extensions_are_read() {
        assert_eq!(Reader(b"\xa2hi").next(), Ok(Token::Text(b"hi")));
        assert_eq!(Reader(b"\xd9\x02hi").next(), Ok(Token::Text(b"hi")));
        assert_eq!(Reader(b"\xda\x00\x02hi").next(), Ok(Token::Text(b"hi")));
        assert_eq!(Reader(b"\xc4\x01x").next(), Ok(Token::Bytes(b"x")));
        assert_eq!(Reader(b"\xc5\x00\x01x").next(), Ok(Token::Bytes(b"x")));
        assert_eq!(Reader(b"\xdc\x00\x01\xc0").next(), Ok(Token::Array(1)));
        assert_eq!(Reader(b"\xde\x00\x01\xc0\xc0").next(), Ok(Token::Map(1)));
        assert_eq!(Reader(b"\xd4\x05x").next(), Ok(Token::Extension));
        assert_eq!(Reader(b"\xc7\x01\x05x").next(), Ok(Token::Extension));
        let mut reader = Reader(b"\x82\xa1a\x91\xc3\xa1b\xc0\x01");
        assert_eq!(reader.value().unwrap().0.len(), 8);
        assert_eq!(reader.next(), Ok(Token::Unsigned(1)));
    }

    #[test]
    fn a_list_cannot_be_longer_than_the_bytes() {
        for head in [
            &b"\xdd\xff\xff\xff\xff"[..],
            b"\xdf\x7f\xff\xff\xff",
            b"\x92\xc0",
        ] {
            assert!(Reader(head).next().is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = Reader(&bytes);
            while let Ok(value) = reader.value() {
                prop_assert!(!value.0.is_empty());
            }
        }
    }
}
