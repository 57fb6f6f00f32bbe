import argparse

from penstock.cli.arguments import add_settings, settings
from penstock.cli.replicas import words_of


def given(*arguments: str) -> dict[str, tuple[str, ...]]:
    parser = argparse.ArgumentParser()
    add_settings(parser)
    return settings(parser.parse_args(arguments))


def test_replicas_get_the_flags_but_those_of_the_listener() -> None:
    words = words_of(
        given(
            *("--port", "1", "--api-key", "k", "--replicas", "2", "--threads", "8"),
            *("--served-model-name", "a", "--served-model-name", "b"),
            *("--no-enable-prefix-caching", "--allow-special-tokens", "--block-size", "64"),
        )
    )
    pairs = {(words[at], words[at + 1]) for at in range(len(words) - 1)}
    assert {("--served-model-name", "a"), ("--served-model-name", "b")} <= pairs
    assert ("--block-size", "64") in pairs
    assert {"--no-enable-prefix-caching", "--allow-special-tokens"} <= set(words)
    assert not {"--port", "--api-key", "--replicas", "--threads"} & set(words)
