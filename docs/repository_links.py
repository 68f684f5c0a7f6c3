"""A hook of MkDocs, which finds only pages in docs/: other files are linked at the repository.

In the sources these links are relative, so that they work in every checkout, and the address of the
repository stands in mkdocs.yml alone.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"\]\((\.\./[^)\s#]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Returns the text of a page in which links that leave docs/ have the repository's address."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def link(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        if path.startswith("docs/") or not (_ROOT / path).exists():
            return match[0]  # MkDocs checks it
        kind = "tree" if (_ROOT / path).is_dir() else "blob"
        return f"]({config.repo_url}/{kind}/main/{path}{match[2] or ''})"

    return _LINK.sub(link, markdown)
