"""For mkdocs: links from pages to files of the repository, which are no pages.

A link such as [kernels.h](../src/attention/kernels.h) works where the repository is read; in the
site its text remains. A file that is not there is an error.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)#]*)(#[^)]*)?\)")


def on_page_markdown(markdown, page, **_):
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def replace(match):
        target = (folder / match[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return match[0]
        if not target.exists():
            raise FileNotFoundError(f"docs/{page.file.src_uri}: broken link to {match[2]}")
        return match[1]

    return _LINK.sub(replace, markdown)
