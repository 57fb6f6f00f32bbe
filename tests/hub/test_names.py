"""What a model may be called, and which files of a repository that is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hub.errors import HubError
from penstock.hub.listing import RemoteFile, is_safe
from penstock.hub.names import (
    HubName,
    gguf_models,
    is_model,
    parse,
    quantisation,
    select,
    select_config,
    select_tokenizer,
    select_without_weights,
)

HASH = "0" * 40


def listing(*names: str) -> dict[str, RemoteFile]:
    return {name: RemoteFile(name, 10, HASH) for name in names}


def chosen(name: str, *files: str) -> list[str]:
    parsed = parse(name)
    assert parsed is not None
    return [file.name for file in select(listing(*files), parsed).files]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("org/repo", HubName("org/repo")),
        ("org/repo:Q4_K_M", HubName("org/repo", "Q4_K_M")),
        ("hf.co/org/repo:q8_0", HubName("org/repo", "q8_0")),
        ("huggingface.co/org/repo", HubName("org/repo")),
        ("org/repo:a/b-Q4_0.gguf", HubName("org/repo", "a/b-Q4_0.gguf")),
        ("https://huggingface.co/org/repo", HubName("org/repo")),
        ("https://huggingface.co/org/repo/tree/dev", HubName("org/repo", None, "dev")),
        (
            "https://hf.co/org/repo/resolve/main/x/m-Q4_0.gguf?download=true",
            HubName("org/repo", "x/m-Q4_0.gguf", "main"),
        ),
        ("https://huggingface.co/org/repo/blob/v1/m.gguf", HubName("org/repo", "m.gguf", "v1")),
        ("http://mirror:1/base/org/repo", HubName("org/repo")),
        ("https://huggingface.co/org/repo/resolve/main/README.md", None),
        ("https://huggingface.co/org/../repo", None),
        ("https://elsewhere.example/org/repo", None),
        ("https://[/org/repo", None),
        ("repo", None),
        ("org/repo:", None),
        ("org/repo:../x", None),
        ("org/repo:a/b", None),
        ("org/repo/more", None),
        ("../repo", None),
        ("org/..", None),
        ("org--x/repo", None),
        ("org/repo\n", None),
        ("/org/repo", None),
        ("", None),
    ],
)
def test_names(text: str, name: HubName | None) -> None:
    assert parse(text, "http://mirror:1/base") == name


@given(st.text(max_size=60))
def test_what_is_no_name_is_none(text: str) -> None:
    name = parse(text)
    if name is not None:
        org, _, repo = name.repository.partition("/")
        assert is_safe(org)
        assert is_safe(repo)
        assert ".." not in str(name)
        assert name.variant is None or is_safe(name.variant) or "/" not in name.variant


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.]{0,20}/[A-Za-z0-9][A-Za-z0-9_.]{0,20}", fullmatch=True),
    st.sampled_from([None, "Q4_K_M", "BF16", "m.gguf", "d/m.gguf"]),
)
def test_a_name_reads_as_it_is_written(repository: str, variant: str | None) -> None:
    name = HubName(repository, variant)
    assert parse(str(name)) == (None if ".." in repository else name)


@pytest.mark.parametrize(
    ("file", "label"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-coder-7b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("gemma-3-4b-it-f16.gguf", "F16"),
        ("UD-Q4_K_XL/model-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("BF16/model-BF16-00001-of-00003.gguf", "BF16"),
        ("Q8_0/model.gguf", "Q8_0"),
        ("m-IQ4_NL.gguf", "IQ4_NL"),
        ("model.gguf", None),
        ("Q2X.gguf", "Q2X"),
        ("gemma-3-4b-it-qat-q4_0.gguf", "Q4_0"),
    ],
)
def test_quantisations_in_names(file: str, label: str | None) -> None:
    assert quantisation(file) == label


GGUFS = (
    "m-Q4_K_M.gguf",
    "m-Q8_0.gguf",
    "big/m-BF16-00001-of-00002.gguf",
    "big/m-BF16-00002-of-00002.gguf",
    "mmproj-m-f16.gguf",
    "m.imatrix.gguf",
    "README.md",
)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("o/r", ["m-Q4_K_M.gguf"]),
        ("o/r:q8_0", ["m-Q8_0.gguf"]),
        ("o/r:BF16", ["big/m-BF16-00001-of-00002.gguf", "big/m-BF16-00002-of-00002.gguf"]),
        ("o/r:m-Q8_0.gguf", ["m-Q8_0.gguf"]),
        (
            "o/r:m-BF16-00002-of-00002.gguf",
            ["big/m-BF16-00001-of-00002.gguf", "big/m-BF16-00002-of-00002.gguf"],
        ),
    ],
)
def test_gguf_files_of_a_name(name: str, files: list[str]) -> None:
    assert chosen(name, *GGUFS) == files


def test_the_first_part_is_loaded() -> None:
    selection = select(listing(*GGUFS), HubName("o/r", "bf16"))
    assert selection.main == "big/m-BF16-00001-of-00002.gguf"
    assert selection.size == 20


def test_one_file_wins_over_its_parts() -> None:
    """Qwen2.5's repositories have both."""
    parts = [f"m-q4_k_m-0000{i}-of-00002.gguf" for i in (1, 2)]
    assert chosen("o/r:Q4_K_M", "m-q4_k_m.gguf", *parts) == ["m-q4_k_m.gguf"]
    assert chosen("o/r", "m-q4_k_m.gguf", *parts) == ["m-q4_k_m.gguf"]


def test_a_dynamic_quantisation_is_found_without_its_prefix() -> None:
    assert chosen("o/r:Q4_K_XL", "m-UD-Q4_K_XL.gguf", "m-Q8_0.gguf") == ["m-UD-Q4_K_XL.gguf"]


@pytest.mark.parametrize(
    ("name", "files", "said"),
    [
        ("o/r:Q5_K_M", GGUFS, "none of its GGUF files is in Q5_K_M; did you mean Q4_K_M?; it has"),
        ("o/r:mmproj-m-f16.gguf", GGUFS, "mmproj files are the image part of a model"),
        ("o/r:m-Q8_1.gguf", GGUFS, "no file m-Q8_1.gguf; did you mean m-Q8_0.gguf?; it has big/m-"),
        ("o/r:Q8_0", ("a-Q8_0.gguf", "b-Q8_0.gguf"), "name one, as o/r:a-Q8_0.gguf"),
        ("o/r", ("a.gguf", "b.gguf"), "which of its GGUF files? Add one of a.gguf, b.gguf"),
        ("o/r", ("README.md", "pytorch_model.bin"), "neither safetensors with a config.json nor"),
        ("o/r:Q8_0", ("model.safetensors",), "the repository has no GGUF files; leave out :Q8_0"),
        ("o/r:Q8_0", ("m-Q8_0-00002-of-00002.gguf",), "lacks 1 of 2 parts of the split file"),
    ],
)
def test_names_without_one_model(name: str, files: tuple[str, ...], said: str) -> None:
    with pytest.raises(HubError) as refused:
        chosen(name, *files)
    assert said in str(refused.value)
    assert str(refused.value).startswith("o/r")


REPOSITORY = {
    "config.json": True,
    "generation_config.json": True,
    "tokenizer.json": True,
    "tokenizer_config.json": True,
    "tiktoken.model": True,
    "chat_template.jinja": True,
    "model.safetensors.index.json": True,
    "model-00001-of-00002.safetensors": True,
    "README.md": False,
    "tokenization_kimi.py": False,
    "pytorch_model.bin": False,
    "original/model.safetensors": False,
    "original/config.json": False,
    "metal/model.bin": False,
}
"""Names as in the repositories of Kimi-K2 and gpt-oss, and whether they are needed."""


def test_what_a_model_needs_is_downloaded_and_copies_are_not() -> None:
    needed = {file for file, is_needed in REPOSITORY.items() if is_needed}
    selection = select(listing(*REPOSITORY), HubName("o/r"))
    assert {file.name for file in selection.files} == needed
    assert selection.main is None
    tokenizer = select_tokenizer(listing(*REPOSITORY), HubName("o/r"))
    weights = "model-00001-of-00002.safetensors"
    assert {file.name for file in tokenizer.files} == needed - {weights}
    assert select_tokenizer(listing(*GGUFS), HubName("o/r")).main == "m-Q4_K_M.gguf"


def test_a_model_without_its_weights_needs_a_config() -> None:
    found = select_without_weights(listing(*REPOSITORY), HubName("o/r"))
    names = {file.name for file in found.files}
    assert "config.json" in names
    assert not [name for name in names if name.endswith(".safetensors")]
    whole = {file.name for file in select(listing(*REPOSITORY), HubName("o/r")).files}
    assert names == {name for name in whole if not name.endswith(".safetensors")}
    with pytest.raises(HubError, match=r"no config\.json"):
        select_without_weights(listing(*GGUFS), HubName("o/r"))


def test_a_plan_needs_the_configuration_alone() -> None:
    files = [file.name for file in select_config(listing(*REPOSITORY), HubName("o/r")).files]
    assert files == ["config.json", "model.safetensors.index.json"]
    with pytest.raises(HubError, match=r"the repository has no config\.json; it has README\.md"):
        select_config(listing("README.md"), HubName("o/r"))


@given(st.lists(st.sampled_from([*GGUFS, *REPOSITORY, "a-00001-of-99999.gguf"]), unique=True))
def test_a_selection_has_files_of_the_listing_only(files: list[str]) -> None:
    for variant in (None, "Q4_K_M", "BF16"):
        try:
            selection = select(listing(*files), HubName("o/r", variant))
        except HubError:
            continue
        assert selection.files
        assert {file.name for file in selection.files} <= set(files)
        assert selection.main is None or is_model(selection.main)


def test_models_of_a_listing() -> None:
    assert gguf_models(listing(*GGUFS)) == {
        "big/m-BF16-00001-of-00002.gguf": [
            "big/m-BF16-00001-of-00002.gguf",
            "big/m-BF16-00002-of-00002.gguf",
        ],
        "m-Q4_K_M.gguf": ["m-Q4_K_M.gguf"],
        "m-Q8_0.gguf": ["m-Q8_0.gguf"],
    }
