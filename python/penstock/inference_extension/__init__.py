"""Kinds of the Gateway API inference extension: InferencePool, InferenceObjective,
InferenceModelRewrite, and the older InferenceModel.

`read` checks the form of those in files, `rules_of` says what they mean for the gateway and which
of them are at odds, `converted` writes new kinds for old ones. In a file an InferencePool has a
name and a port; its replicas are those that gateway.yaml lists for the pool of this name.
`cluster_rules` checks and translates the resources of a cluster.
"""

from penstock.inference_extension.cluster import cluster_rules
from penstock.inference_extension.convert import converted
from penstock.inference_extension.resources import Finding, Resource, read
from penstock.inference_extension.rules import Rules, rules_of

__all__ = ["Finding", "Resource", "Rules", "cluster_rules", "converted", "read", "rules_of"]
