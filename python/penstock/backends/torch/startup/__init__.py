"""Work before the first request: kernel compilation and tuning, warm-up, memory measurement."""
