//! Search for marks in chunked text.

/// Position of the first mark.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FirstMark {
    /// `text[start..end]` is the mark with this index.
    Mark {
        start: usize,
        end: usize,
        which: usize,
    },
    /// No mark; a partial mark may start at this offset.
    Clear(usize),
}

/// Finds the first mark. Two marks must not begin at the same position, so no mark may be a prefix
/// of another.
pub(crate) fn find(text: &str, marks: &[&str]) -> FirstMark {
    let whole = |(which, mark): (usize, &&str)| text.find(*mark).map(|start| (start, which));
    let first = marks.iter().enumerate().filter_map(whole).min();
    let begun = marks.iter().filter_map(|mark| begun(text, mark)).min();
    match (first, begun) {
        // If a longer mark may have started earlier, wait for it.
        (Some((start, which)), begun) if begun.is_none_or(|b| start <= b) => FirstMark::Mark {
            start,
            end: start + marks[which].len(),
            which,
        },
        (_, begun) => FirstMark::Clear(begun.unwrap_or(text.len())),
    }
}

/// Offset of the longest suffix of `text` that is a proper prefix of `mark`.
fn begun(text: &str, mark: &str) -> Option<usize> {
    let most = text.len().min(mark.len() - 1);
    let (text_bytes, mark) = (text.as_bytes(), mark.as_bytes());
    (1..=most)
        .rev()
        .find(|&length| text_bytes.ends_with(&mark[..length]))
        .map(|length| text.len() - length)
}

/// The start of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The mark with this index; it ends at `end`.
    Mark { end: usize, which: usize },
    /// Undecided: more text is needed.
    Wait,
    /// Something else.
    Other,
}

/// Matches `marks` at the start of the text.
pub(crate) fn next_of(text: &str, marks: &[&str]) -> Next {
    for (which, mark) in marks.iter().enumerate() {
        if text.starts_with(mark) {
            let end = mark.len();
            return Next::Mark { end, which };
        }
    }
    if marks.iter().any(|mark| mark.starts_with(text)) {
        return Next::Wait;
    }
    Next::Other
}

/// Bytes of leading white space.
pub(crate) fn spaces(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_mark_counts() {
        let marks = ["<a>", "\n<a>"];
        let at = |start, end, which| FirstMark::Mark { start, end, which };
        assert_eq!(find("x<a>", &marks), at(1, 4, 0));
        assert_eq!(find("x\n<a>", &marks), at(1, 5, 1));
        assert_eq!(find("x\n<a", &marks), FirstMark::Clear(1));
        assert_eq!(find("x<b<", &marks), FirstMark::Clear(3));
        assert_eq!(find("é", &["<｜x"]), FirstMark::Clear(2));
        assert_eq!(find("é<｜", &["<｜x"]), FirstMark::Clear(2));
    }

    #[test]
    fn what_comes_next() {
        let marks = ["<a>", "<b>"];
        assert_eq!(next_of("<b>x", &marks), Next::Mark { end: 3, which: 1 });
        assert_eq!(next_of("", &marks), Next::Wait);
        assert_eq!(next_of("<", &marks), Next::Wait);
        assert_eq!(next_of("<c", &marks), Next::Other);
    }
}
