"""Schema of the resources' kinds: their members, according to the custom resource definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.config.documents import Steps
from penstock.inference_extension.documents import Document

FIRST = "inference.networking.x-k8s.io/v1alpha1"
EXPERIMENTAL = "inference.networking.x-k8s.io/v1alpha2"
STABLE = "inference.networking.k8s.io/v1"
LLM_D = "llm-d.ai/v1alpha2"

MOST_WEIGHT = 1_000_000
CRITICALITIES = {"Critical": 1, "Standard": 0, "Sheddable": -1}
"""Priority for each criticality of an InferenceModel."""


@dataclass(frozen=True, slots=True)
class Of:
    """Expected type of a value: a scalar type, a list of items, or a mapping with these members."""

    type: type
    members: Mapping[str, Of] | None = None
    """Types of the mapping's members; None allows any members."""
    items: Of | None = None
    required: frozenset[str] = frozenset()


TEXT, NUMBER, ANYTHING = Of(str), Of(int), Of(dict)


def _mapping(required: str = "", **members: Of) -> Of:
    return Of(dict, members, required=frozenset(required.split()))


def _list(items: Of) -> Of:
    return Of(list, items=items)


_REF = _mapping("name", group=TEXT, kind=TEXT, name=TEXT)
_PICKER = _mapping(
    "name",
    group=TEXT,
    kind=TEXT,
    name=TEXT,
    port=_mapping("number", number=NUMBER),
    failureMode=TEXT,
)
_EXTENSION = _mapping("name", group=TEXT, kind=TEXT, name=TEXT, portNumber=NUMBER, failureMode=TEXT)
_FIRST_EXTENSION = _mapping(
    "name", group=TEXT, kind=TEXT, name=TEXT, targetPortNumber=NUMBER, failureMode=TEXT
)
_SELECTOR = _mapping(matchLabels=ANYTHING, matchExpressions=Of(list))
_MATCH = _mapping(model=_mapping("value", type=TEXT, value=TEXT))
_TARGET = _mapping("modelRewrite", modelRewrite=TEXT, weight=NUMBER)
_RULE = _mapping("targets", name=TEXT, matches=_list(_MATCH), targets=_list(_TARGET))

_POOL = _mapping(
    "selector targetPorts",
    selector=_mapping("matchLabels", matchLabels=ANYTHING),
    targetPorts=_list(_mapping("number", number=NUMBER)),
    appProtocol=TEXT,
    endpointPickerRef=_PICKER,
)


def _old_pool(extension: Of) -> Of:
    return _mapping(
        "selector targetPortNumber",
        selector=ANYTHING,
        targetPortNumber=NUMBER,
        extensionRef=extension,
    )


_OBJECTIVE = _mapping(priority=NUMBER, poolRef=_REF, poolRefs=_list(_REF), poolSelector=_SELECTOR)
_REWRITE = _mapping("poolRef rules", poolRef=_REF, rules=_list(_RULE))
_MODEL = _mapping(
    "modelName poolRef",
    modelName=TEXT,
    criticality=TEXT,
    poolRef=_REF,
    targetModels=_list(_mapping("name", name=TEXT, weight=NUMBER)),
)

KINDS: Mapping[str, Mapping[str, Of]] = {
    "InferencePool": {
        STABLE: _POOL,
        EXPERIMENTAL: _old_pool(_EXTENSION),
        FIRST: _old_pool(_FIRST_EXTENSION),
    },
    "InferenceObjective": {EXPERIMENTAL: _OBJECTIVE, LLM_D: _OBJECTIVE},
    "InferenceModelRewrite": {EXPERIMENTAL: _REWRITE, LLM_D: _REWRITE},
    "InferenceModel": {EXPERIMENTAL: _MODEL, FIRST: _MODEL},
}
"""Schema of the member `spec`, by kind and apiVersion of the resource."""


def complaints(document: Document, spec: Of) -> Iterator[tuple[Steps, str]]:
    """Errors in the members of a resource and their types, each with the path of the value."""
    top = _mapping(
        "metadata spec",
        apiVersion=TEXT,
        kind=TEXT,
        metadata=ANYTHING,
        spec=spec,
        status=ANYTHING,
    )
    yield from _wrong(document.content, top, ())
    metadata = document.content.get("metadata")
    if isinstance(metadata, dict) and not isinstance(metadata.get("name"), str):
        yield ("metadata",), "metadata has no name"


def _wrong(value: object, wanted: Of, path: Steps) -> Iterator[tuple[Steps, str]]:
    name = ".".join(str(step) for step in path) or "the resource"
    if not isinstance(value, wanted.type) or isinstance(value, bool):
        yield path, f"{name} is {value!r}, and has to be {_WORDS[wanted.type]}"
        return
    if isinstance(value, list) and wanted.items is not None:
        for at, item in enumerate(value):
            yield from _wrong(item, wanted.items, (*path, at))
    if not isinstance(value, dict) or wanted.members is None:
        return
    for key in sorted(wanted.required - value.keys()):
        yield path, f"{name} has no {key}"
    for key, member in value.items():
        if key in wanted.members:
            yield from _wrong(member, wanted.members[key], (*path, key))
        else:
            known = ", ".join(wanted.members)
            yield (*path, key), f"{name} has no member {key!r}; there are {known}"


_WORDS = {str: "a text", int: "a whole number", dict: "a mapping", list: "a list"}
