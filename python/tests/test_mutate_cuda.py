"""scripts/mutate_cuda.py: its faults can be planted, which takes an hour to find out otherwise."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def faults():
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
