"""Writes a Helm chart: templates, values and their schema. The templates come from the same
functions that create the objects of `penstock deploy k8s`.
"""
