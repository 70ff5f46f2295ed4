"""The package as it lies in a wheel: where it finds its parts, and what it says without them."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tsallis

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture
def installed(tmp_path):
    """site-packages as the wheel fills them, from the build tree."""
    package = tmp_path / "site" / "tsallis"
    for folder in PYPROJECT["tool"]["scikit-build"]["wheel"]["packages"]:
        shutil.copytree(ROOT / folder, package.parent / Path(folder).name)
    shutil.copy(tsallis.library_path, package)
    return package


def run(package, *arguments, **more):
    unwanted = ("TSALLIS_LIBRARY", "TSALLIS_SOURCE_DIR", "TSALLIS_PYTHON")
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    environment |= {"PYTHONPATH": str(package.parent), **more}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=package.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_one_version():
    settings = PYPROJECT["tool"]["scikit-build"]["metadata"]["version"]
    text = (ROOT / settings["input"]).read_text()
    assert re.search(settings["regex"], text)["value"] == tsallis.__version__


def test_it_is_typed():
    assert (ROOT / "python" / "tsallis" / "py.typed").is_file()
    assert PYPROJECT["tool"]["mypy"]["strict"]


def test_parts_come_from_the_package(installed):
    answer = run(
        installed,
        "-c",
        "import torch, tsallis; print(tsallis.library_path, tsallis.__version__);"
        "print(tsallis.entmax(torch.tensor([0.0, 0.5, 3.0])).tolist())",
    )
    assert answer.stderr == ""
    path, version = answer.stdout.splitlines()[0].split()
    assert Path(path) == installed / "libtsallis_operators.so"
    assert version == tsallis.__version__


def test_the_program_is_not_part_of_it(installed):
    missing = run(installed, "-m", "tsallis", "list")
    assert missing.returncode == 1
    assert "clone the repository and run `make` there" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_an_older_torch_is_named(installed):
    answer = run(installed, "-c", "import torch; torch.__version__ = '2.9.1+cu128'; import tsallis")
    assert answer.returncode == 1
    assert "ImportError: tsallis: expected torch 2.10 or newer, got torch 2.9.1" in answer.stderr


@pytest.mark.parametrize(
    ("system", "machine"), [("darwin", "arm64"), ("win32", "AMD64"), ("linux", "riscv64")]
)
def test_another_platform_is_named(installed, system, machine):
    pretend = f"import sys, platform, torch; platform.machine = lambda: {machine!r}; "
    answer = run(installed, "-c", pretend + f"sys.platform = {system!r}; import tsallis")
    assert answer.returncode == 1
    assert f"expected Linux on x86-64 or aarch64, got {system} on {machine}" in answer.stderr


def test_a_missing_torch_is_named(installed):
    answer = run(installed, "-S", "-c", "import tsallis")
    assert answer.returncode == 1
    assert "install torch 2.10 or newer" in answer.stderr


def test_a_library_of_something_else_is_named(installed):
    (installed / "libtsallis_operators.so").write_bytes(b"no library")
    answer = run(installed, "-c", "import tsallis")
    assert answer.returncode == 1
    assert "could not be loaded into torch" in answer.stderr
