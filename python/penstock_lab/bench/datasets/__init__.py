"""Generated and sampled requests: random lengths, ShareGPT conversations, custom prompts.

Each module has a function (options, maker, seed) -> requests; `maker` builds the prompts. The
requests are due at once, until `arrivals.at_times` sets their due times. Names, defaults and
semantics follow `vllm bench serve` 0.32.
"""

from penstock_lab.bench.datasets.custom import custom_requests
from penstock_lab.bench.datasets.files import FileOptions
from penstock_lab.bench.datasets.random import RandomOptions, parse_range_ratio, random_requests
from penstock_lab.bench.datasets.sharegpt import sharegpt_requests

__all__ = [
    "FileOptions",
    "RandomOptions",
    "custom_requests",
    "parse_range_ratio",
    "random_requests",
    "sharegpt_requests",
]
