"""Write stub CUDA libraries beside PyPI's torch, so that it imports on a machine without a GPU.

usage: cuda_stubs.py SITE_DIRECTORY

For Linux on x86-64, PyPI has torch only with CUDA, whose libraries are another 4 GB. torch's CPU
device calls none of them, but the dynamic loader needs each library and each symbol. A stub library
defines the symbols that torch's libraries import; each function returns 1, which is an error code
in all of CUDA. Libraries that are already installed in the directory are not replaced. Requires cc
and readelf.
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

CUDA = re.compile(r"lib(cu|nv|nccl)")
ELSEWHERE = re.compile(r"libcuda\.|libcusolver")
"""Libraries that need no stub: libcuda is part of the driver, libcusolver is loaded on first use.
"""
PREFIXES = {
    "libnccl.": "nccl",
    "libcufile.": "cuFile",
    "libcusparseLt.": "cusparseLt",
    "libnvshmem_host.": "nvshmem",
}
"""Libraries whose symbols have no version: the file name and the prefix of its functions. The
prefix tells which library defines a symbol.
"""
NEEDED = re.compile(r"\(NEEDED\).*\[(lib[^\]]+)\]")
VERSIONS = re.compile(r"File: (\S+)\s+Cnt: \d+\n((?:\s+0x\w+:\s+Name:.*\n?)+)")
RELOCATION = re.compile(
    r"R_X86_64_(JUMP_SLOT|GLOB_DAT|64|COPY)\s+[0-9a-f]+\s+([A-Za-z_]\w*)(?:@([\w.]+))?"
)

Symbols = dict[str, set[tuple[str, bool]]]
"""Symbols of one library as (name, whether it is a function), by symbol version; the version is ""
for symbols without one.
"""


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def missing_libraries(files: list[Path], installed: set[str]) -> set[str]:
    """CUDA libraries that `files` link to and that are neither among them nor `installed`."""
    have = {file.name for file in files} | installed
    needed = {name for file in files for name in NEEDED.findall(output("readelf", "-Wd", file))}
    return {name for name in needed - have if CUDA.match(name) and not ELSEWHERE.match(name)}


def wanted_symbols(files: list[Path], libraries: set[str]) -> dict[str, Symbols]:
    """Symbols that `files` import from each of `libraries`."""
    found: dict[str, Symbols] = {name: defaultdict(set) for name in libraries}
    for file in files:
        owners = {}
        for library, versions in VERSIONS.findall(output("readelf", "-WV", file)):
            owners.update(dict.fromkeys(re.findall(r"Name: (\S+)", versions), library))
        for version, library in owners.items():
            if library in found:
                found[library][version] |= set()
        for kind, name, version in RELOCATION.findall(output("readelf", "-Wr", file)):
            library = owners.get(version) or unversioned_owner(name, libraries)
            if library in found:
                found[library][version].add((name, kind == "JUMP_SLOT"))
    return found


def unversioned_owner(name: str, libraries: set[str]) -> str | None:
    for library in libraries:
        if any(library.startswith(k) and name.startswith(p) for k, p in PREFIXES.items()):
            return library
    return None


def write_stub(target: Path, symbols: Symbols) -> None:
    lines, versions = ["int stub_marker;"], []
    for number, (version, names) in enumerate(sorted(symbols.items())):
        functions = {name for name, is_function in names if is_function}
        data = {name for name, _ in names} - functions
        marker = f"stub_marker_{number}"
        lines += [f"int {marker};"]
        lines += [f"int {name}() {{ return 1; }}" for name in sorted(functions)]
        lines += [f"char {name}[4096];" for name in sorted(data)]
        exported = "; ".join([marker, *sorted(functions | data)])
        if version:
            versions.append(f"{version} {{ global: {exported}; }};")
    with tempfile.TemporaryDirectory() as directory:
        source, script = Path(directory, "stub.c"), Path(directory, "stub.map")
        source.write_text("\n".join(lines))
        script.write_text("\n".join(versions))
        options = [f"-Wl,--version-script={script}"] if versions else []
        names = [f"-Wl,-soname,{target.name}", "-o", str(target), str(source)]
        subprocess.run(["cc", "-shared", "-fPIC", "-w", *options, *names], check=True)


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    directory = Path(sys.argv[1], "torch", "lib")
    files = sorted(directory.glob("*.so*"))
    if not files:
        print(f"cuda_stubs.py: no libraries in {directory}")
        return 1
    installed = {file.name for file in Path(sys.argv[1], "nvidia").rglob("lib*.so*")}
    missing = missing_libraries(files, installed)
    for library, symbols in sorted(wanted_symbols(files, missing).items()):
        write_stub(directory / library, symbols)
    return 0


if __name__ == "__main__":
    sys.exit(main())
