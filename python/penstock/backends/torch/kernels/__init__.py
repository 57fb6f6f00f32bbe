"""Kernels of the torch backend, each with its reference implementation in torch.

A function runs the reference for tensors on the CPU, and Triton for tensors on a GPU. The kernels
depend only on Triton and take pointers and strides; they are independent of the models.
"""

from penstock.backends.torch.kernels.activation import Activation, activate
from penstock.backends.torch.kernels.attention import Scoring
from penstock.backends.torch.kernels.checksum import crc64
from penstock.backends.torch.kernels.decode import attend_decode
from penstock.backends.torch.kernels.experts import experts, linear, linear_wide
from penstock.backends.torch.kernels.gather import Beside
from penstock.backends.torch.kernels.latent import attend_latent
from penstock.backends.torch.kernels.matrix import Matrix
from penstock.backends.torch.kernels.norm import layer_norm, rms_norm
from penstock.backends.torch.kernels.prefill import Spans, attend_prefill
from penstock.backends.torch.kernels.rotation import (
    Heads,
    rotate,
    rotate_and_store,
    store_latent,
)
from penstock.backends.torch.kernels.route import Rule, route, sort_by_expert
from penstock.backends.torch.kernels.rows import find_rows
from penstock.backends.torch.kernels.sample import sample

__all__ = [
    "Activation",
    "Beside",
    "Heads",
    "Matrix",
    "Rule",
    "Scoring",
    "Spans",
    "activate",
    "attend_decode",
    "attend_latent",
    "attend_prefill",
    "crc64",
    "experts",
    "find_rows",
    "layer_norm",
    "linear",
    "linear_wide",
    "rms_norm",
    "rotate",
    "rotate_and_store",
    "route",
    "sample",
    "sort_by_expert",
    "store_latent",
]
