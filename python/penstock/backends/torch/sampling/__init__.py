"""Per-sequence state (slots), sampling, scoring and pooling."""
