"""The pages are built as `make docs` does it: what is missing or leads nowhere is an error. What
they say of figures and commands is held against reports and recipes."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import tsallis
from tsallis.compat import adasplash, entmax

ROOT = Path(__file__).resolve().parents[2]


def build(root, site):
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(site)]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
def test_every_public_name_has_an_entry(tmp_path):
    answer = build(ROOT, tmp_path / "site")
    assert answer.returncode == 0, answer.stderr
    for page, package in (
        ("functional", tsallis.functional),
        ("nn", tsallis.nn),
        ("compat", entmax),
        ("compat", adasplash),
    ):
        text = (tmp_path / "site" / "api" / page / "index.html").read_text()
        for name in package.__all__:
            member = getattr(package, name)
            # Numbers, types and second names of a function have no entry of their own.
            if callable(member) and name == getattr(member, "__name__", None):
                assert f'id="{package.__name__}.{name}"' in text, name


# A link out of docs/ ends the build; of the others all are named.
@pytest.mark.slow
@pytest.mark.parametrize(
    "links", [["../src/nowhere.h"], ["nowhere.md", "explain/attention.md#nowhere"]]
)
def test_a_broken_link_is_an_error(tmp_path, links):
    for name in ("docs", "python", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("tests"))
    for path in ROOT.glob("*"):
        if path.name not in ("docs", "python", "scripts", "build"):
            (tmp_path / path.name).symlink_to(path)
    with (tmp_path / "docs" / "index.md").open("a") as page:
        page.writelines(f"\n[see]({link})\n" for link in links)
    answer = build(tmp_path, tmp_path / "site")
    assert answer.returncode != 0
    for link in links:
        assert re.search(rf"(WARNING|Error).*{re.escape(link)}", answer.stderr), answer.stderr


def test_figures_with_a_spread_are_in_what_their_section_links_to():
    page = ROOT / "docs" / "explain" / "what-decides.md"
    seen = 0
    for section in page.read_text().split("\n## "):
        links = set(re.findall(r"\((\.\./[^)#]+\.(?:md|json|toml))[)#]", section))
        sources = "".join((page.parent / link).read_text() for link in links)
        for line in section.splitlines():
            for figure in re.findall(r"[+-]?\d+(?:\.\d+)? ± \d+(?:\.\d+)?", line):
                seen += 1
                assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\.?\d)", sources), line
    assert seen > 60  # of a page that says what its figures are worth


def test_commands_name_methods_that_the_recipe_has():
    seen = 0
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for name, methods in re.findall(
            r"tsallis (?:train|reproduce) ([\w-]+)(?![\w-]|\.toml)[^\n`#]*? --methods? ([\w.,-]+)",
            page.read_text(),
        ):
            recipe = tomllib.loads((ROOT / "experiments" / f"{name}.toml").read_text())
            known = {method["name"] for method in recipe["method"]}
            assert set(methods.split(",")) <= known, (page, name)
            seen += 1
    assert seen > 2


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_index_of_the_log_is_that_of_its_entries():
    """`make log` writes it from headings, dates, tags and subjects."""
    made = script("log_index")
    page = (ROOT / "docs" / "log.md").read_text()
    assert len(made.entries(page)) > 30
    assert page == made.with_index(page)


@pytest.mark.parametrize(
    ("changed", "to", "error"),
    [
        ("2026-01-02, kernel: decoding", "2026-01-02", "no date, tag and subject"),
        ("kernel: decoding", "kernel: cooking", "unknown tag or subject"),
        ("kernel: decoding", "study: decoding", "unknown tag or subject"),
        ("2026-01-02", "2026-01-04", "newer than the entry above"),
    ],
)
def test_a_wrong_entry_of_the_log_is_an_error(changed, to, error):
    made = script("log_index")
    log = (
        f"# Log\n\n{made.BEGIN}\n{made.END}\n\n"
        "## Newer: 1.5 times\n\n*2026-01-03, tool: tests.*  Text.\n\n"
        "## Older\n\n*2026-01-02, kernel: decoding.* Text.\n"
    )
    indexed = made.with_index(log)
    assert indexed.index("- [Older](#older)") < indexed.index(
        "- [Newer: 1.5 times](#newer-15-times)"
    )
    assert made.with_index(indexed) == indexed
    with pytest.raises(ValueError, match=error):
        made.with_index(log.replace(changed, to))


def files_of_the_project():
    answer = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if answer.returncode != 0:
        pytest.skip("not a clone")
    return answer.stdout.split()


# Histories name what there was; generated pages name runs.
HISTORY = ("docs/log.md", "CHANGELOG.md")


def test_paths_that_pages_name_exist():
    files = files_of_the_project()
    known = set(files) | {str(parent) for name in files for parent in Path(name).parents}
    tops = {name.split("/")[0] for name in files if "/" in name}
    seen = 0
    for page in [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        *(f for f in files if f.startswith("docs/")),
    ]:
        if not page.endswith(".md") or page in HISTORY:
            continue
        for path in re.findall(r"`([\w.-]+(?:/[\w.-]+)+)/?`", (ROOT / page).read_text()):
            placeholder = re.search("NAME|/my|results/runs", path)
            if placeholder or path.split("/")[0] not in tops:
                continue
            assert path in known, f"{page}: {path}"
            seen += 1
    assert seen > 100


def test_the_readme_is_read_at_one_sitting():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 90
    assert {line: len(line) for line in lines if len(line) > 120} == {}


def prose(page):
    """The lines of a page outside of its code blocks."""
    return re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.S | re.M)


def anchors(page):
    """The places of a page that links may name: its headings as GitHub names them, and <a id>."""
    text = prose(page)
    found = set(re.findall(r'<a id="([^"]+)"', text))
    seen = Counter()
    for heading in re.findall(r"^#{1,6} (.+?)\s*#*$", text, flags=re.M):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def test_anchors_are_those_of_github(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# `tsallis.decode`: a *cache*, 2.5 times\n\n## Same\n\n```sh\n# no heading\n```\n\n"
        "## Same\n\n### [Why](x.md) α-entmax?\n\n<a id='m1'></a>".replace("'", '"')
    )
    names = {"tsallisdecode-a-cache-25-times", "same", "same-1", "why-α-entmax", "m1"}
    assert anchors(page) == names


def test_links_between_files_lead_to_headings_that_exist():
    lost = []
    seen = 0
    for name in files_of_the_project():
        page = ROOT / name
        if page.suffix != ".md":
            continue
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            seen += 1
            if not target.exists() or (anchor and anchor not in anchors(target)):
                lost.append((name, link))
    assert lost == []
    assert seen > 300


def test_rows_that_files_cite_are_defined():
    page = (ROOT / "docs" / "definitions.md").read_text()
    rows = set(re.findall(r'<a id="(\w+)"></a>', page))
    assert len(rows) > 50
    letters = {row[0] for row in rows}
    seen = 0
    for name in files_of_the_project():
        if Path(name).suffix not in {".h", ".cc", ".py", ".toml", ".md"} or name in HISTORY:
            continue
        text = (ROOT / name).read_text()
        assert not re.search(r"\bSPEC\b", text.replace("\\bSPEC\\b", "")), name
        cited = re.findall(r"definitions\.md, ((?:[A-Z]\d*(?:-[A-Z]\d+)?(?:, )?)+)", text)
        cited += re.findall(r"\(([A-Z]\d+) in docs/definitions\.md", text)
        for row in re.findall(r"[A-Z]\d*", " ".join(cited)):
            assert row.lower() in (rows | letters), f"{name}: {row}"
            seen += 1
    assert seen > 20


def test_names_on_the_page_of_definitions_exist():
    page = (ROOT / "docs" / "definitions.md").read_text()
    names = re.findall(r"`tsallis\.([\w.]+)`", page)
    assert len(names) > 8
    for name in names:
        member = tsallis
        for part in name.split("."):
            member = getattr(member, part)


def test_every_key_of_a_recipe_is_on_its_page():
    page = (ROOT / "docs" / "guide" / "recipes.md").read_text()
    config = ROOT / "src" / "lab" / "config"
    reader = "".join((config / name).read_text() for name in ("recipe.cc", "optimizers.cc"))
    tasks = [path.read_text() for path in (ROOT / "src" / "lab" / "tasks").glob("*.cc")]
    named = r'table\.(?:Required|Optional)\("(\w+)"'
    keys = set(re.findall(named, reader))
    assert len(keys) > 60
    own = {key for text in tasks for key in re.findall(named, text)}
    assert len(own) > 12
    sections = {"study", "task", "model", "train", "method", "scale"}
    missing = {key for key in (keys | own) - sections if f"`{key}`" not in page}
    assert not missing
    for section in sections:
        assert f"[{section}" in page


def test_times_of_cuda_kernels_follow_from_counted_work():
    made = script("predict_cuda")
    # The last of five blocks on two slots runs alone.
    assert made.span([3, 3, 2, 2, 2], slots=2) == 7
    assert made.at_keys([(64, 10), (1024, 50)], 256) == pytest.approx(30)
    assert made.at_keys([(64, 10), (1024, 50)], 4096) == 50
    assert made.least_squares([[1, 2], [2, 1]], [8, 7]) == pytest.approx([2, 3])
    assert made.least_squares([[1, 1], [1, 2]], [3, 1])[1] == 0  # else below 0
    # Two blocks of 128 rows that see 4 and 2 tiles of 64 keys.
    work = made.sweep(256, 64, 1, [(1, 7)])
    assert work.blocks.tolist() == [[1, 4, 4, 7], [1, 2, 2, 7]]
    assert work.time([100, 10, 1, 0.5]) == pytest.approx(0.1475)
    tail = made.sweep(1024, 64, 265)
    assert tail.time([0, 1, 0, 0], across=True) < tail.time([0, 1, 0, 0])
    assert made.dense([8], 128, 1, 3, power=True).blocks.tolist() == [[24, 40, 24]]


def test_predicted_times_of_cuda_kernels_hold():
    """Whole forward passes on normal inputs, of which most are not fitted: within a sixth."""
    made = script("predict_cuda")
    document = json.loads((ROOT / "docs/figures/cuda-counts.json").read_text())
    cases = made.normal_cases(document)
    model = made.Model(cases)
    parts = ("sweep", "known thresholds", "lone blocks")
    whole = [case for case in cases if not case.name.endswith(parts)]
    ratios = {case.name: model.time(case) / case.measured for case in whole}
    assert len(ratios) > 10
    assert max(abs(ratio - 1) for ratio in ratios.values()) < 1 / 6, ratios
