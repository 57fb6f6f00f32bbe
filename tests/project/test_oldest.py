"""What `make test-torch-oldest` installs is what pyproject.toml promises. That run takes long and
is no part of `make test`.
"""

import re
import tomllib

from tests.project import tree


def test_the_oldest_versions_are_those_that_are_promised() -> None:
    project = tomllib.loads((tree.REPOSITORY / "pyproject.toml").read_text())["project"]
    promised = [each.split(",")[0] for each in project["optional-dependencies"]["cuda"]]
    pins = (tree.REPOSITORY / "constraints-oldest.txt").read_text().splitlines()
    for least in promised:
        name, version = least.split(">=")
        pattern = rf"{name}=={re.escape(version)}(\.[0-9]+)*"
        assert any(re.fullmatch(pattern, pin) for pin in pins), least
