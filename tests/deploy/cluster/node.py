"""A Kubernetes of one node: control plane, kubelet, containerd and runc, kube-proxy, a bridge."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from tests.deploy.cluster.confined import PLUGINS, Confined
from tests.deploy.cluster.control_plane import ControlPlane
from tests.deploy.image import Images, call
from tests.deploy.programs import tools
from tests.e2e.server import eventually
from tests.kubernetes.bed import SERVICES

PODS = "10.244.0.0/24"
NODE = "node-1"
PAUSE = "localhost/pause:1"
PAUSE_SOURCE = "#include <signal.h>\n#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
RUNTIME = Path(__file__).parent / "containerd"
"""containerd with volumes of kind image, which Debian's 1.6 does not have."""
DISK = "300m"
"""Size of the file system that the kubelet watches for room."""
CONTAINERD = """
version = 2
root = "{folder}/containerd"
state = "{folder}/run"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{folder}/registries"
"""


class Node(ControlPlane):
    """Ready when the block begins; what it started has ended, and is gone, when it ends."""

    def __init__(self) -> None:
        self._runtime = tools(RUNTIME)
        self.place = Confined((SERVICES, PODS)).__enter__()
        # Paths of sockets are short.
        folder = Path(tempfile.mkdtemp(prefix="pen", dir="/tmp"))
        self.inside = (*self.place.inside, "env", "-C", str(folder))
        super().__init__(folder, self.place.address, self.inside)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.place.__exit__()
        super().__exit__(kind, error, trace)
        shutil.rmtree(self.folder)

    @property
    def _socket(self) -> str:
        return f"{self.folder}/containerd.sock"

    def begin(self) -> None:
        admin = self.start_controllers()
        self._write_configurations()
        call(*self.inside, "mkdir", f"{self.folder}/kubelet")
        size = ("-o", f"size={DISK}")
        call(*self.inside, "mount", "-t", "tmpfs", *size, "kubelet", f"{self.folder}/kubelet")
        self._run(self._runtime / "containerd", "--config", f"{self.folder}/containerd.toml")
        eventually(lambda: Path(self._socket).exists(), "containerd")
        self._kubelet = self._start(
            *("kubelet", "--config", f"{self.folder}/kubelet.yaml", "--kubeconfig", admin),
            *("--hostname-override", NODE, "--root-dir", f"{self.folder}/kubelet"),
            *("--node-ip", self.address),
        )
        self._start(
            *("kube-proxy", "--kubeconfig", admin, "--hostname-override", NODE),
            *("--proxy-mode", "iptables", "--conntrack-max-per-core", "0"),
        )
        self._announce_server()
        eventually(lambda: self.node_is_ready(NODE), "the node")

    def _announce_server(self) -> None:
        """The API server behind the Service that pods know it by."""
        self.call(
            "POST",
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            {
                "metadata": {
                    "name": "kubernetes",
                    "labels": {"kubernetes.io/service-name": "kubernetes"},
                },
                "addressType": "IPv4",
                "endpoints": [{"addresses": [self.address]}],
                "ports": [{"name": "https", "port": self.port, "protocol": "TCP"}],
            },
        )

    def _write_configurations(self) -> None:
        settings = {
            "folder": self.folder,
            "socket": self._socket,
            "pause": PAUSE,
            "plugins": PLUGINS,
        }
        (self.folder / "containerd.toml").write_text(CONTAINERD.format(**settings))
        bridge = {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": f"{self.folder}/addresses",
                        "ranges": [[{"subnet": PODS}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }
        (self.folder / "cni").mkdir()
        (self.folder / "cni/pods.conflist").write_text(json.dumps(bridge))
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.place.cgroup,
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "enforceNodeAllocatable": [],
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "volumePluginDir": f"{self.folder}/plugins",
            "podLogsDir": f"{self.folder}/logs",
            "resolvConf": "",
            "nodeStatusUpdateFrequency": "2s",
            "evictionHard": {"nodefs.available": "100Mi", "imagefs.available": "1Mi"},
            "evictionPressureTransitionPeriod": "5s",
            # This machine's disk may be as full as it likes.
            "imageGCHighThresholdPercent": 100,
        }
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(kubelet))

    def load(self, images: Images, *names: str) -> None:
        """Copies images into the node's store, which makes `localhost/NAME:1` of them."""
        for name in names:
            archive = self.folder / "image.tar"
            images.buildah("push", "-q", name, f"docker-archive:{archive}:localhost/{name}:1")
            ctr = (self._runtime / "ctr", "--address", self._socket, "--namespace", "k8s.io")
            call(*self.inside, *ctr, "images", "import", archive)
            archive.unlink()

    def trust(self, registry: str) -> None:
        """Let images be pulled from a registry without TLS."""
        folder = self.folder / "registries" / registry
        folder.mkdir(parents=True)
        host = f'[host."http://{registry}"]\n  capabilities = ["pull", "resolve"]\n'
        # Else HTTPS is tried last, and its error is the one that is kept.
        (folder / "hosts.toml").write_text(f'server = "http://{registry}"\n{host}')

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """A file that leaves no room where the kubelet keeps its own."""
        file = f"{self.folder}/kubelet/full"
        call(*self.inside, "fallocate", "-l", "295M", file)
        try:
            yield
        finally:
            call(*self.inside, "rm", file)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """A kubelet that stands still."""
        pid = self._kubelet.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(child), signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(int(child), signal.SIGCONT)
            # nsenter stops with its child.
            os.kill(pid, signal.SIGCONT)

    def processes(self, pod: Mapping[str, Any]) -> list[int]:
        """Processes of a pod's container, by this machine's numbers, the first one first."""
        (status,) = pod["status"]["containerStatuses"]
        name = status["containerID"].rpartition("/")[2]
        root = Path(f"/sys/fs/cgroup/memory{self.place.cgroup}")
        (file,) = root.rglob(f"{name}/cgroup.procs")
        return sorted(map(int, file.read_text().split()))


def pause(folder: Path, images: Images) -> None:
    """The image of a pod's first container, which waits."""
    folder.mkdir()
    (folder / "pause.c").write_text(PAUSE_SOURCE)
    call("gcc", "-static", "-Os", "-o", folder / "pause", folder / "pause.c")
    (folder / "Containerfile").write_text(
        'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n'
    )
    images.build(folder / "Containerfile", folder, "pause")
