"""What slots keep of their sequences, and logits to tokens, scores and vectors."""
