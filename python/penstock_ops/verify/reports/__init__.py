"""Reports of a verdict: text for terminals, JSON, and JUnit's XML for CI systems."""
