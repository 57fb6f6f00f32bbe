"""Ranks as Ray actors, on one host or several.

cluster         joins or starts a cluster; imports Ray, as edges does
cluster_reaper  ends the engine's own cluster after the engine was killed
placement       node of each stage, or the reason why none fits
actors          the ranks' actors: calls, monitoring, shutdown
calls           plans and answers as actor calls, or as executions of a compiled graph
edges           communicators of a compiled graph that carries tensors between stages
connect         the executor
"""

from penstock.executor.ray.connect import connect_ray

__all__ = ["connect_ray"]
