"""Reads the custom resources (Kubernetes) of the Gateway API inference extension: InferencePool,
InferenceObjective, InferenceModelRewrite, and the older InferenceModel.

`read` validates resources in files, `rules_of` translates them to the gateway's rules and reports
conflicts, `converted` migrates old kinds to new ones. In a file, an InferencePool provides a name
and a port; its replicas are listed in gateway.yaml under the same pool name. `cluster_rules`
validates and translates the resources of a cluster.
"""

from penstock.inference_extension.cluster import cluster_rules
from penstock.inference_extension.convert import converted
from penstock.inference_extension.resources import Finding, Resource, read
from penstock.inference_extension.rules import Rules, rules_of

__all__ = ["Finding", "Resource", "Rules", "cluster_rules", "converted", "read", "rules_of"]
