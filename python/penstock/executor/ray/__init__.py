"""Ranks as Ray actors, on one host or several.

cluster    joining a cluster or starting one; the only file that imports Ray
placement  which node holds which stage, and why none can
actors     the actors: called, watched, ended
calls      plans and answers as calls of actors, or as executions of a compiled graph
executor   all of it together
"""

from penstock.executor.ray.executor import RayExecutor

__all__ = ["RayExecutor"]
