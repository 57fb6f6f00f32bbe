//! Grammars: round trips and refusals.
use penstock_wire::{Grammar, GrammarKind, MAX_GRAMMAR_BYTES};

#[test]
fn every_kind_survives() {
    for kind in [
        GrammarKind::JsonSchema,
        GrammarKind::Regex,
        GrammarKind::Choice,
        GrammarKind::Syntax,
        GrammarKind::StructuralTag,
    ] {
        let grammar = Grammar::new(kind, "é".repeat(9));
        let bytes = grammar.encode().unwrap();
        assert_eq!(
            (bytes[0], &bytes[1..]),
            (kind as u8, grammar.text.as_bytes())
        );
        assert_eq!(Grammar::decode(&bytes).unwrap(), grammar);
    }
}

#[test]
fn what_is_no_grammar_is_refused() {
    for (bytes, field) in [
        (&b""[..], "kind"),
        (b"\x00x", "kind"),
        (b"\x06x", "kind"),
        (b"\x01", "text"),
        (b"\x01\xff", "text"),
    ] {
        assert_eq!(
            Grammar::decode(bytes).unwrap_err().field,
            field,
            "{bytes:?}"
        );
    }
    let text = |bytes| Grammar::new(GrammarKind::Regex, "a".repeat(bytes));
    assert!(text(MAX_GRAMMAR_BYTES).encode().is_ok());
    assert_eq!(
        text(MAX_GRAMMAR_BYTES + 1).encode().unwrap_err().field,
        "text"
    );
    assert_eq!(text(0).encode().unwrap_err().field, "text");
}
