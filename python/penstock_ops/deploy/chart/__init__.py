"""A Helm chart from the same functions that create objects: templates, values and their schema."""
