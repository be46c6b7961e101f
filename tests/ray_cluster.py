"""A Ray cluster on this machine, for tests: a head without CPUs, and nodes that can be killed."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

STORE = 80 << 20  # bytes of a node's shared memory
HEALTH = {"initial_delay_ms": 0, "period_ms": 200, "timeout_ms": 1000, "failure_threshold": 5}


def missing() -> str:
    """Why no cluster can start here; "" if one can."""
    return "" if importlib.util.find_spec("ray") else "ray is not installed"


class Cluster:
    """The processes of Ray. Ends exactly those that it has started."""

    def __init__(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster as Nodes

        head = {
            "num_cpus": 0,
            "object_store_memory": STORE,
            "include_dashboard": False,
            "_system_config": {f"health_check_{key}": value for key, value in HEALTH.items()},
        }
        self._nodes = Nodes(initialize_head=True, head_node_args=head)
        self.address: str = self._nodes.address

    def add(self, **resources: float) -> Any:
        """Start a node, by default of one CPU."""
        asked: dict[str, Any] = {"num_cpus": 1, "object_store_memory": STORE, **resources}
        return self._nodes.add_node(**asked)

    def kill(self, node: Any) -> None:
        """Kill -9 all processes of a node."""
        self._nodes.remove_node(node, allow_graceful=False)

    def stop(self) -> None:
        """End all processes."""
        import ray

        ray.shutdown()
        self._nodes.shutdown()
