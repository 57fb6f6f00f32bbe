"""Hook for mkdocs: links from docs/ to other files of the repository become links to GitHub."""

import posixpath
import re
from typing import Any

LINK = re.compile(r"(\]\()((?:\.\./)+)([^)\s]*\))")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def forge(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2] + link[3][:-1]))
        if target.startswith("docs/"):
            return link[0]
        raw = "?raw=true" if target.endswith((".png", ".svg")) else ""
        return f"{link[1]}{config.repo_url}/blob/main/{target}{raw})"

    return LINK.sub(forge, markdown)
