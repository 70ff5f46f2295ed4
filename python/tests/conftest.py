"""Makes the package importable from the source tree and every test repeatable."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
