"""For mkdocs: links from pages to files of the repository, which are no pages.

A link such as [kernels.h](../src/attention/kernels.h) works where the repository is read; in the
site its text remains. Pictures such as ![](../results/sort/figures/accuracy.png) become part of the
site. A file that is not there is an error.
"""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((\.\./[^)#]*)(#[^)]*)?\)")


def _outside(source: str, link: str) -> Path | None:
    """The file of the repository that a page's link means, from its root; None: a page."""
    target = Path(os.path.normpath((ROOT / "docs" / source).parent / link))
    if target.is_relative_to(ROOT / "docs"):
        return None
    if not target.exists():
        raise FileNotFoundError(f"docs/{source}: broken link to {link}")
    return target.relative_to(ROOT)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pictures: set[Path] = set()
    for page in files.documentation_pages():
        for match in _LINK.finditer((ROOT / "docs" / page.src_uri).read_text()):
            target = _outside(page.src_uri, match[3]) if match[1] else None
            if target is not None:
                pictures.add(target)
    for target in sorted(pictures):
        files.append(File.generated(config, target.as_posix(), abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    source = page.file.src_uri

    def replace(match: re.Match[str]) -> str:
        target = _outside(source, match[3])
        if target is None:
            return match[0]
        if not match[1]:
            return match[2]
        return f"![{match[2]}]({os.path.relpath(target, Path(source).parent)})"

    return _LINK.sub(replace, markdown)
