"""Xid events against NVIDIA's catalogue, and what must never be a failure alone."""

from __future__ import annotations

import pytest

from penstock_ops.verify.checks.xid import parse, severity
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.finding import Status

HEAD = "4,7,991833114,-;NVRM: Xid (PCI:0000:3b:00):"


def status(code: int, text: str = "pid=1, name=python3, text") -> Status:
    (event,) = parse(f"{HEAD} {code}, {text}")
    return severity(event)[0]


@pytest.mark.parametrize("code", [48, 62, 64, 74, 79, 95, 119, 120, 136, 140, 143])
def test_devices_that_do_not_serve_fail(code: int) -> None:
    assert status(code) is Status.FAIL


@pytest.mark.parametrize("code", [13, 31, 43, 45, 37, 38, 44, 63, 92, 121, 160])
def test_faults_of_programs_and_remarks_pass(code: int) -> None:
    assert status(code) is Status.PASS


@pytest.mark.parametrize("code", [8, 46, 68, 94, 110, 158, 9999])
def test_others_warn(code: int) -> None:
    assert status(code) is Status.WARN


def test_words_of_nvlink_5_and_of_the_recovery_action() -> None:
    assert status(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x1)") is Status.FAIL
    assert status(149, "NETIR_LINK_EVT Nonfatal XC0 i0 Link 08 (0x1)") is Status.WARN
    changed = "GPU recovery action changed from"
    assert status(154, f"{changed} 0x0 (None) to 0x2 (Node Reboot Required)") is Status.FAIL
    assert status(154, f"{changed} 0x1 (GPU Reset Required) to 0x0 (None)") is Status.PASS


def test_a_gpu_that_fell_off_the_bus_without_an_xid() -> None:
    (event,) = parse("3,7,9,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.")
    assert (event.code, event.device) == (79, "0000:3b:00.0")


def test_device_and_process_are_named() -> None:
    (event,) = parse(f"{HEAD} 95, pid=4242, name=python3, Uncontained: LTC TAG")
    assert (event.device, event.code, event.process) == ("0000:3b:00", 95, "python3")


@pytest.mark.parametrize("line", [f"{HEAD} 7", f"{HEAD} 79,", "NVRM: Xid", "4,x,9,-;text"])
def test_a_line_that_is_cut_is_an_error(line: str) -> None:
    with pytest.raises(ParseError, match="line 1"):
        parse(line)
