"""The rooms of the sources: what a file may include (ARCHITECTURE.md)."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"


def drawn(folder: str) -> list[str]:
    """The rooms of a folder as ARCHITECTURE.md draws them, the lowest first."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    picture = re.search(rf"```\n  {folder}/\n(.*?)```", text, re.DOTALL)
    assert picture, folder
    return re.findall(r"^ {4}(\w+)/", picture.group(1), re.MULTILINE)


def included(file: Path) -> set[str]:
    return set(re.findall(r'^#include "([^"]+)"', file.read_text(), re.MULTILINE))


def program_files(folder: Path) -> list[Path]:
    """Without those that are only of the tests."""
    files = [*folder.rglob("*.h"), *folder.rglob("*.cc")]
    return [
        file
        for file in files
        if not file.name.endswith("_test.cc")
        and "testing" not in file.relative_to(folder).parts
        and not file.name.startswith("test_")
        and file.name != "every_target.h"
    ]


def upward(order: list[str], folder: Path, prefix: str) -> list[str]:
    """Includes from a room of `order` into one behind it."""
    found = []
    for room in order:
        for file in program_files(folder / room):
            for name in included(file):
                if not name.startswith(prefix):
                    continue
                other = name.removeprefix(prefix).split("/")[0]
                if other in order and order.index(other) > order.index(room):
                    found.append(f"{file.relative_to(ROOT)} includes {name}")
    return sorted(found)


def test_calls_go_one_way():
    order = ["core", "simplex", "attention", "cache", "stable", "torch", "lab", "cli"]
    assert set(order) == {path.name for path in SOURCES.iterdir() if path.is_dir()}
    assert not upward(order, SOURCES, "")


def test_operators_know_the_stable_interface_alone():
    """One binary runs in every torch only so."""
    allowed = ("torch/csrc/stable/", "torch/csrc/inductor/aoti_torch/c/", "torch/headeronly/")
    for file in program_files(SOURCES / "stable"):
        names = re.findall(r"#include <([^>]+/[^>]+)>", file.read_text())
        assert not [name for name in names if not name.startswith(allowed)], file


def test_the_lab_has_no_circles():
    order = drawn("src/lab")
    folders = {path.name for path in (SOURCES / "lab").iterdir() if path.is_dir()}
    assert set(order) == folders - {"testing"}
    assert not [path for path in (SOURCES / "lab").iterdir() if path.is_file()]
    assert not upward(order, SOURCES / "lab", "lab/")


@pytest.mark.parametrize("kernel", ["decode", "lanes", "sweep", "stream", "dense"])
def test_kernels_do_not_know_each_other(kernel):
    kernels = {path.name for path in (SOURCES / "attention" / "cpu").iterdir() if path.is_dir()}
    assert kernels == {"decode", "lanes", "sweep", "stream", "dense"}
    for file in program_files(SOURCES / "attention" / "cpu" / kernel):
        for other in kernels - {kernel}:
            assert not [
                name for name in included(file) if name.startswith(f"attention/cpu/{other}/")
            ], file


# Kernels for GPUs are written in nvcc's names or, where only tests compile them, an emulation's.
DEVICE = SOURCES / "core/cuda/device.h"


def test_only_tests_use_what_is_for_tests():
    for file in program_files(SOURCES):
        if file != DEVICE:
            assert not [name for name in included(file) if "/testing/" in name], file
        assert not [name for name in included(file) if name.endswith("every_target.h")], file


PACKAGES = ("", "_report", "_text")


# The worked example of everything that is added often, named by few files: whoever adds another one
# changes as many, and the page that says how names each of them. Integrations translate what other
# engines have already, so a new one does not reach them.
@pytest.mark.parametrize(
    ("name", "most", "page"),
    [
        ("sigmoid_bias", 12, "docs/change/adding-a-map.md"),
        ("softcap", 12, "docs/change/adding-a-score-term.md"),
        ("MakeFlipFlop", 3, "docs/change/adding-a-task.md"),
        ("relu2|SquaredRelu|squared_relu", 3, "docs/explain/decoder.md"),
        ("output_gate|OutputGate", 4, "docs/change/adding-a-block.md"),
        ("muon", 3, "ARCHITECTURE.md"),
        ("MakeConvert", 3, "ARCHITECTURE.md"),
        (r"\b[Ii]nsertion\b", 3, "ARCHITECTURE.md"),
        (r"\bBLEU\b|\bbleu\b", 4, "docs/change/adding-a-task.md"),
    ],
)
def test_few_files_name_a_setting(name, most, page):
    files = [
        file.relative_to(ROOT)
        for folder in ("src", "include", *(f"python/tsallis{part}" for part in PACKAGES))
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".cc", ".h", ".cu", ".py"} and "_test." not in file.name
    ]
    elsewhere = {"testing", "integrations"}
    found = [
        file
        for file in files
        if not elsewhere.intersection(file.parts) and re.search(name, (ROOT / file).read_text())
    ]
    assert len(found) <= most, sorted(map(str, found))
    text = (ROOT / page).read_text()
    own = {"sigmoid.cc"}  # the map's own definition
    # Of a source and its header the page may name one.
    assert not [str(file) for file in found if file.stem not in text and file.name not in own]


def faults():
    """Of scripts/mutate_cuda.py, which takes an hour to find that one cannot be planted."""
    path = ROOT / "scripts" / "mutate_cuda.py"
    spec = importlib.util.spec_from_file_location("mutate_cuda", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FAULTS


def test_every_fault_changes_text_that_is_there():
    missing = [
        f"{fault.file}: {fault.name}"
        for fault in faults()
        if fault.old not in (ROOT / "src" / fault.room / fault.file).read_text()
    ]
    assert not missing
    assert all(fault.old != fault.new for fault in faults())
