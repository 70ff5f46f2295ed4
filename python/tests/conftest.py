"""Makes the package importable from the source tree and every test repeatable."""

import os
import sys
from pathlib import Path

# Compiled graphs on disk know an operator by its name alone: one from before its schema changed
# would be run.
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
# Tests that run beside each other have a core each, and so have the programs that they start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
