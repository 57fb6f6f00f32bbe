"""Manifests in a cluster: applied, compared, deleted, and why their pods do not serve."""
