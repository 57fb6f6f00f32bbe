"""Outputs of the field's own benchmarks, read as numbers: perftest (RDMA) and nccl-tests."""
