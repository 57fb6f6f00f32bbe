"""Kinds of the Gateway API inference extension from files: InferencePool, InferenceObjective,
InferenceModelRewrite, and the older InferenceModel.

`read` checks the form, `rules_of` says what they mean for the gateway and which of them are at
odds, `converted` writes new kinds for old ones. Without a cluster an InferencePool has a name and a
port; its replicas are those that gateway.yaml lists for the pool of this name.
"""

from penstock.kinds.convert import converted
from penstock.kinds.resources import Finding, Resource, read
from penstock.kinds.rules import Rules, rules_of

__all__ = ["Finding", "Resource", "Rules", "converted", "read", "rules_of"]
