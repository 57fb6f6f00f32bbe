"""Ranks as Ray actors, on one host or several.

cluster    joining a cluster or starting one; the only file that imports Ray
placement  which node holds which stage, and why none can
wiring     what joins the ranks: shared memory of one node, streams between two
actors     the actors: called, watched, ended
rings      plans and answers through shared memory, and over lines to other nodes
calls      plans and answers as calls of actors, or as executions of a compiled graph
executor   all of it together
"""

from penstock.executor.ray.executor import RayExecutor

__all__ = ["RayExecutor"]
