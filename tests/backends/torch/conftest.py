"""Tests of the torch backend: `make test` runs them once, with the torch of `make torch-tools`."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py", "*/test_*.py"]
