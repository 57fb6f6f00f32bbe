"""A Helm chart of the same functions that make objects: templates, values and their schema."""
