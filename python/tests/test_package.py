"""The package as it lies in a wheel: where it finds its parts, and what it says without them."""

import json
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
    shutil.copytree(ROOT / "python" / "tsallis", package)
    for name in ("libtsallis_torch.so", "libtsallis_torch.json"):
        shutil.copy(tsallis.library_path.with_name(name), package)
    shutil.copytree(ROOT / "python" / "tsallis_report", tmp_path / "site" / "tsallis_report")
    shutil.copytree(ROOT / "experiments", package / "share" / "experiments")
    (package / "bin").mkdir()
    shutil.copy(ROOT / "build" / "bin" / "tsallis", package / "bin")
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
    assert Path(path) == installed / "libtsallis_torch.so"
    assert version == tsallis.__version__


def test_module_is_the_program(installed):
    listed = run(installed, "-m", "tsallis", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    names = [path.stem for path in (installed / "share" / "experiments").glob("*.toml")]
    assert names
    assert all(name in listed.stdout for name in names)
    shutil.rmtree(installed / "share" / "experiments")
    incomplete = run(installed, "-m", "tsallis", "list", "--json")
    assert incomplete.returncode == 2
    assert f"holds experiments/, got {installed / 'share'}" in incomplete.stderr
    wrong = run(installed, "-m", "tsallis", "lsit")
    assert wrong.returncode == 2
    assert "list" in wrong.stderr
    shutil.rmtree(installed / "bin")
    missing = run(installed, "-m", "tsallis", "list")
    assert missing.returncode == 1
    assert "the program was not found in" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_another_torch_is_named(installed):
    (installed / "libtsallis_torch.json").write_text(json.dumps({"torch": "2.6.1"}))
    answer = run(installed, "-c", "import tsallis")
    assert answer.returncode == 1
    assert "was built against torch 2.6.1, this is torch " in answer.stderr
    assert "pip install --no-build-isolation" in answer.stderr


def test_a_missing_torch_is_named(installed):
    answer = run(installed, "-S", "-c", "import tsallis")
    assert answer.returncode == 1
    assert "install torch 2.6 or newer" in answer.stderr


def test_a_library_of_something_else_is_named(installed):
    (installed / "libtsallis_torch.so").write_bytes(b"no library")
    answer = run(installed, "-c", "import tsallis")
    assert "could not be loaded into torch" in answer.stderr
    assert "built against the torch that imports it" in answer.stderr
