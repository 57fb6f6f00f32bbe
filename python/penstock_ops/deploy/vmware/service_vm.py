"""The service VM of a host: it has the NVSwitches, and runs Fabric Manager for all GPUs."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from penstock.core import InvalidValueError
from penstock_ops.deploy.emit import dump

INTERFACE = "ens33"
"""Name of the first network interface in VMware's Deep Learning VM (source 002, example 2)."""


@dataclass(frozen=True, slots=True)
class Network:
    """A static address; DHCP where `address` is empty."""

    address: str = ""
    """With its prefix, such as `10.0.0.5/24`."""
    gateway: str = ""
    dns: tuple[str, ...] = ()
    interface: str = INTERFACE


def user_data(network: Network, fabric_manager: str) -> str:
    """The cloud-config of the VM: its address, and Fabric Manager of exactly this version."""
    package = f"nvidia-fabricmanager-{fabric_manager.partition('.')[0]}"
    version = f"{fabric_manager.partition('-')[0]}-1"
    # Commands rather than `packages`, which cloud-init installs before the network is up.
    commands = [
        "apt-get update",
        f"apt-get install -y {package}={version}",
        f"apt-mark hold {package}",
        "systemctl enable --now nvidia-fabricmanager",
    ]
    config: dict[str, object] = {"manage_etc_hosts": True}
    if network.address:
        plan = {
            "path": "/etc/netplan/50-cloud-init.yaml",
            "permissions": "0600",
            "content": dump(_netplan(network)),
        }
        config["write_files"] = [plan]
        commands.insert(0, "netplan apply")
    config["runcmd"] = commands
    return f"#cloud-config\n{dump(config)}"


def network_of(address: str, gateway: str, dns: str, interface: str) -> Network:
    """The network that flags name. InvalidValueError for what is no address, or an address without
    gateway and name servers.
    """
    names = tuple(filter(None, dns.split(",")))
    if not address:
        if gateway or names:
            raise InvalidValueError("--service-vm-address", "", "an address for this gateway")
        return Network(interface=interface)
    try:
        host = ipaddress.ip_interface(address)
    except ValueError:
        host = None
    if host is None or "/" not in address:
        raise InvalidValueError("--service-vm-address", address, "such as 10.0.0.5/24")
    servers = [("--service-vm-dns", name) for name in names]
    for flag, text in (("--service-vm-gateway", gateway), *servers):
        try:
            ipaddress.ip_address(text)
        except ValueError:
            raise InvalidValueError(flag, text, "an address such as 10.0.0.1") from None
    if ipaddress.ip_address(gateway) not in host.network:
        raise InvalidValueError("--service-vm-gateway", gateway, f"an address in {host.network}")
    return Network(address, gateway, names, interface)


def _netplan(network: Network) -> dict[str, object]:
    interface: dict[str, object] = {
        "dhcp4": False,
        "addresses": [network.address],
        "routes": [{"to": "default", "via": network.gateway}],
    }
    if network.dns:
        interface["nameservers"] = {"addresses": list(network.dns)}
    return {
        "network": {
            "version": 2,
            "renderer": "networkd",
            "ethernets": {network.interface: interface},
        }
    }
