"""Manifests in a cluster: apply, diff, delete, and diagnosis of pods that do not serve."""
