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


@pytest.fixture
def pages_of_a_device(monkeypatch):
    """New caches have a device's pages, for which this CPU stands."""
    from tsallis import CacheFull, _cache
    from tsallis._device_cache import DevicePages

    def made(layers, kv_heads, head_dim, value_dim, dtype, screen, ranges, moments, max_bytes):
        sizes, kind = (layers, kv_heads, head_dim, value_dim), _cache._DTYPES[dtype]
        return DevicePages(*sizes, kind, torch.device("cpu"), max_bytes, CacheFull)

    monkeypatch.setattr(_cache, "_HostPages", made)
