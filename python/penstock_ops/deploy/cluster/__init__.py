"""Applies a directory's manifests to a cluster, compares and deletes them, and finds out why pods
do not serve.
"""
