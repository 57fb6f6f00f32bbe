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
BANDWIDTH_JSON = """{
 "test_info": {"test": "BW", "Device": "mlx5_0"},
 "results": {
  "MsgSize": 1048576,
  "n_iterations": 5000,
  "BW_peak": 396.45,
  "BW_average": 396.44,
  "MsgRate": 0.047259
 }
}
"""
LATENCY_JSON = """{
 "test_info": {"test": "LAT"},
 "results": {"MsgSize": 8, "n_iterations": 1000, "t_min": 3.42, "t_max": 9.8, "t_typical": 3.56}
}
"""
NCCL_JSON = """{
 "version": "2.19.6",
 "config": {"devices": [{"rank": 0}, {"rank": 1}, {"rank": 2}, {"rank": 3},
  {"rank": 4}, {"rank": 5}, {"rank": 6}, {"rank": 7}],
  "environment": {"AWS_SECRET_ACCESS_KEY": "hunter2"}},
 "results": [
  {"size": 4294967296, "count": 1073741824,
   "out_of_place": {"time": 15763, "alg_bw": 272.48, "bus_bw": 476.84, "nwrong": 0},
   "in_place": {"time": 15779, "alg_bw": 272.20, "bus_bw": 476.35, "nwrong": 0}}
 ],
 "out_of_bounds": {"count": 0, "okay": "true"},
 "average_bus_bandwidth": 155.669
}
"""
