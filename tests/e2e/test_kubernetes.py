"""Pods and kinds of a namespace under a gateway that serves."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.api_server import OBJECTIVES, PODS, POOLS, REWRITES, ApiServer, pod
from tests.e2e.gateway import Gateway
from tests.e2e.pods import hosts, inference_pool, objective, priority_of_batch, replicas, rewrite
from tests.e2e.server import eventually
from tests.e2e.test_gateway_reload import Load


def test_pods_and_kinds_are_followed_and_no_request_is_lost(tmp_path: Path) -> None:
    with replicas(3) as port, ApiServer() as api:
        api.put(POOLS, "llama", inference_pool(port))
        api.put(PODS, "a", pod("127.0.0.1"))
        api.put(PODS, "b", pod("127.0.0.2"))
        api.put(OBJECTIVES, "batch", objective(-3))
        kubeconfig = str(api.kubeconfig(tmp_path))
        flags = ("--inference-pool", "models/llama", "--kubeconfig", kubeconfig, "--explain")
        with Gateway(*flags) as gateway, Load(gateway, 4) as load:
            assert priority_of_batch(gateway, tmp_path) == -3, "from the first request on"
            eventually(lambda: hosts(gateway, tmp_path) == [1, 2], "two pods")
            load.more(20)
            api.put(PODS, "c", pod("127.0.0.3"))
            eventually(lambda: hosts(gateway, tmp_path) == [1, 2, 3], "a third pod")
            api.put(PODS, "a", pod("127.0.0.1", deletionTimestamp="2026-11-22T10:00:00Z"))
            api.put(PODS, "b", pod("127.0.0.2", ready=False))
            eventually(lambda: hosts(gateway, tmp_path) == [3], "one pod")
            api.delete(PODS, "a")
            api.put(PODS, "b", pod("127.0.0.2"))
            eventually(lambda: hosts(gateway, tmp_path) == [2, 3], "two pods again")
            load.more(20)
            api.put(OBJECTIVES, "batch", objective(-4))
            eventually(lambda: priority_of_batch(gateway, tmp_path) == -4, "another priority")
            api.delete(OBJECTIVES, "batch")
            eventually(lambda: priority_of_batch(gateway, tmp_path) == 0, "no priority")
            body = {"model": "chat", "prompt": "t1", "max_tokens": 1}
            with gateway.client() as client:
                assert client.post("/v1/completions", json=body).status_code == 404
                api.put(REWRITES, "rename", rewrite("chat", "sim"))
                eventually(
                    lambda: client.post("/v1/completions", json=body).is_success, "the rewrite"
                )
            api.put(OBJECTIVES, "wrong", objective("high"))  # type: ignore[arg-type]
            eventually(lambda: "priority is 'high'" in "\n".join(gateway.log), "a warning")
            api.stop()
            eventually(lambda: "what was known stays" in "\n".join(gateway.log), "a warning")
            load.more(20)
            assert hosts(gateway, tmp_path) == [2, 3]
        assert set(load.statuses) == {200}
