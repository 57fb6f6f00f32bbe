"""A Ray cluster: an existing one, or a cluster started for this engine alone ("own cluster")."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.config import prepare_ray_environment
from penstock.config.machine import cpu_count
from penstock.config.ray import LOCAL
from penstock.core import PenstockError
from penstock.executor.ray.cluster_reaper import ClusterReaper

MIB = 2**20
LEAST_STORE = 128 * MIB
"""Minimum bytes of the object store of an own cluster. Only compiled graphs use the store."""
REACH = 5.0
"""Timeout in seconds of the check that a cluster's address can be reached. Ray itself would retry
for a minute, then exit.
"""

log = logging.getLogger("penstock.executor")


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    address: str
    cpus: float
    devices: Mapping[str, float] = field(default_factory=dict)
    """Amounts of the node's resources other than CPUs, by name, for example `GPU`."""


class Cluster:
    """The functions of Ray that the executor uses. `own_cpus` (number of CPUs) and `store` (bytes
    of the object store) apply only to an own cluster.
    """

    def __init__(self, address: str | None, own_cpus: int, store: int) -> None:
        address = prepare_ray_environment(address)
        try:
            import ray
        except ImportError as error:
            raise PenstockError(
                "--distributed-executor-backend ray needs Ray: pip install 'penstock[ray]'"
            ) from error
        self.ray: Any = ray
        _reach(address)
        options: dict[str, Any] = {
            "address": address,
            "configure_logging": False,
            "log_to_driver": True,
        }
        if address == LOCAL:
            options |= {
                "num_cpus": max(cpu_count(), own_cpus),
                "include_dashboard": False,
                "object_store_memory": max(store, LEAST_STORE),
            }
        try:
            ray.init(**options)
        except Exception as error:
            raise PenstockError(
                f"cannot join the Ray cluster at {address}: {error}. Look at --ray-address, and at "
                "RAY_AUTH_MODE and the token, which must be those of the cluster"
            ) from error
        self.here: str = ray.get_runtime_context().get_node_id()
        self._reaper = ClusterReaper() if address == LOCAL else None

    def close(self) -> None:
        """Disconnect from the cluster; an own cluster ends."""
        self.ray.shutdown()
        if self._reaper is not None:
            self._reaper.end()

    def nodes(self) -> list[Node]:
        """Nodes that are alive."""
        return [
            Node(
                node["NodeID"],
                node["NodeManagerAddress"],
                node["Resources"].get("CPU", 0.0),
                node["Resources"],
            )
            for node in self.ray.nodes()
            if node["Alive"]
        ]

    def free(self, kind: str) -> float:
        """Free amount of a resource, such as `CPU` or `GPU`, summed over all nodes."""
        return float(self.ray.available_resources().get(kind, 0.0))

    # Placement groups -----------------------------------------------------------------------------

    def reserve(self, bundles: Sequence[dict[str, float]], strategy: str) -> Any:
        from ray.util.placement_group import placement_group

        return placement_group(list(bundles), strategy=strategy)

    def reserved(self, group: Any, timeout: float) -> bool:
        """Wait for a placement group; returns whether it was placed within `timeout` seconds."""
        return bool(group.wait(timeout))

    def bundle_nodes(self, group: Any) -> list[str]:
        """Node id of each bundle of a placement group."""
        from ray.util.placement_group import placement_group_table

        found: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
        return [found[index] for index in range(len(found))]

    def release(self, group: Any) -> None:
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(group)

    # Actors ---------------------------------------------------------------------------------------

    def actor(
        self, kind: type, group: Any, bundle: int, unit: str | None, environment: dict[str, str]
    ) -> Any:
        """An actor on one CPU of a bundle and one unit of the resource `unit`. Ray sets the
        environment variable (CUDA_VISIBLE_DEVICES) that restricts the actor to this device. Calls
        in the concurrency group "control" overtake the actor's other calls.
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options: dict[str, Any] = {
            "num_cpus": 1,
            # Ray has a separate option for GPUs and rejects them as a resource.
            "num_gpus": int(unit == "GPU"),
            "resources": {unit: 1} if unit not in (None, "GPU") else {},
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=bundle
            ),
        }
        if environment:
            options["runtime_env"] = {"env_vars": environment}
        return self.ray.remote(concurrency_groups={"control": 2})(kind).options(**options).remote()

    def graph(self, build: Any, in_flight: int, buffer_bytes: int, overlap: bool) -> Any:
        """A compiled graph for at most `in_flight` executions. `build` receives the input node and
        returns the output nodes.
        """
        from ray.dag import InputNode, MultiOutputNode

        # Silence Ray's report of every dead actor; the executor reports the first.
        logging.getLogger("ray.dag.compiled_dag_node").setLevel(logging.CRITICAL)
        with InputNode() as given:
            nodes = MultiOutputNode(build(given))
        return nodes.experimental_compile(
            _max_inflight_executions=in_flight,
            _buffer_size_bytes=buffer_bytes,
            _overlap_gpu_communication=overlap,
        )


def _reach(address: str) -> None:
    """Raise PenstockError if nothing listens at `address`, if it has the form host:port. Ray checks
    other forms of addresses itself.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except OSError as error:
        raise PenstockError(
            f"no Ray cluster at {address}: {error}. Start one (ray start --head) or correct "
            "--ray-address"
        ) from error
