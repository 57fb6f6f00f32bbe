"""kvikio in POSIX compatibility mode, on machines without a device too."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
from pathlib import Path

import pytest

# Without their dependencies, which are most of CUDA.
INSTALL = (
    "pip install --no-deps kvikio-cu12 libkvikio-cu12 nvidia-cufile-cu12 rapids-logger "
    "cuda-pathfinder"
)
DRIVER = "libcuda.so.1"


@pytest.fixture(scope="session")
def kvikio_works(tmp_path_factory: pytest.TempPathFactory) -> None:
    """kvikio is installed, and there is a driver, or the stand-in that kvikio is content with."""
    if importlib.util.find_spec("kvikio") is None:
        pytest.skip(f"kvikio is not installed: {INSTALL}")
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        library = tmp_path_factory.mktemp("driver") / DRIVER
        source = Path(__file__).with_name("driver.c")
        subprocess.run(
            ["cc", "-shared", "-fPIC", f"-Wl,-soname,{DRIVER}", "-o", library, source], check=True
        )
        # From now on the loader knows a library of this name.
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    import kvikio
    import kvikio.defaults

    kvikio.defaults.set("compat_mode", kvikio.CompatMode.ON)
