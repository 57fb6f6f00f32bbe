"""Kubernetes objects. Each file has one kind of object, with a function that creates it from
`Facts`.
"""
