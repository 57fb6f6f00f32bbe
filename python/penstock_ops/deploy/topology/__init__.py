"""NCCL's topology files: made from a node type, from a machine or from pairs, and checked as NCCL
reads them.
"""
