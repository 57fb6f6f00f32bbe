"""Writes manifests for a deployment plan. Functions return Kubernetes objects as dicts; each kind
of object has its own file.
"""
