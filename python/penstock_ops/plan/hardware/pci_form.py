"""Schema of the member `pci` of a node file: the PCI devices of a node."""

from __future__ import annotations

import re

from penstock.config.forms import Form, count, members, or_null, rows, text, wrong_value


def matching(pattern: str, expected: str) -> Form:
    """Schema of a text that matches a regular expression."""

    def check(key: str, value: object) -> None:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise wrong_value(key, value, expected)

    return check


_number = matching("0x[0-9a-f]{4,6}", "a number as in sysfs, such as '0x10de'")
_address = matching(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", "an address: '0000:16:00.0'")
IDS = members(
    {"class": _number, "vendor": _number, "device": _number},
    {"subsystem_vendor": _number, "subsystem_device": _number},
)
_bridge = members({"busid": _address}, {"subsystem_device": _number})
PCI = members(
    {
        "source": text(),
        "cpu": members({"arch": text(), "vendor": text(), "family": count(), "model": count()}),
        "link_speed": text(),
        "link_width": count(1, 32),
        "bridge": IDS,
        "gpu": IDS,
        "capability": count(50, 999),
        "nic": IDS,
        "nic_mbps": count(1, 10**7),
        "nvswitch": or_null(IDS),
        "nvlinks": rows(count(1, 64)),
        "sockets": rows(rows(_bridge, least=1), least=1),
    }
)
