"""Kinds of objects: a function of the settings for each, in a file of its own."""
