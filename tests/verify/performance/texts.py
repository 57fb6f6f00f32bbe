"""Published outputs, and outputs written by hand in the formats of the tools."""

from __future__ import annotations

from pathlib import Path

RECORDED = Path(__file__).parents[1] / "recorded"
HOST, GPU, NODE, TWO_NODES = (
    (RECORDED / f"{name}.txt").read_text()
    for name in ("send-bw-host", "send-bw-gpu", "all-reduce-node", "all-reduce-two-nodes")
)
RULE = "-" * 87 + "\n"
BANDWIDTH = f"""\
{RULE}                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : mlx5_0
 Lock-free       : OFF
 NUMA node       : 0
 CQE Poll Batch  : 16
{RULE} #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 800.0 != 3000.0. CPU Frequency is not max.
 1048576    5000             396.45             396.44               0.047259
{RULE}"""
MEBI = (
    BANDWIDTH.replace("Gb/sec", "MiB/sec")
    .replace("396.45", "47260.30")
    .replace("396.44", "47259.00")
)
LATENCY = f"""\
{RULE} #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 8       1000          3.42           9.80         3.56                3.60             0.05\
            4.04                    6.22
{RULE}"""
