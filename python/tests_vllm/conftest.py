"""Engines of vLLM, each in a process of its own: ``make check-vllm`` runs these tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("TSALLIS_ATTENTION", "VLLM_PLUGINS", "VLLM_BATCH_INVARIANT")


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """run(job, **environment): the exit code, what `engine.py` found, and all that it printed."""
    cache = tmp_path_factory.mktemp("vllm-cache")

    def answered(job, **environment):
        plain = {name: value for name, value in os.environ.items() if name not in OURS}
        plain |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        plain |= {"VLLM_CACHE_ROOT": str(cache), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        answer = subprocess.run(
            [sys.executable, Path(__file__).with_name("engine.py")],
            input=json.dumps(job),
            env=plain | environment,
            capture_output=True,
            text=True,
            timeout=3600,
        )
        lines = [line for line in answer.stdout.splitlines() if line.startswith("RESULT ")]
        found = json.loads(lines[-1].removeprefix("RESULT ")) if lines else None
        return answer.returncode, found, answer.stdout + answer.stderr

    return answered


@pytest.fixture(scope="session")
def served(run):
    """The same, for jobs that have to end well: what was found, and what was printed."""

    def found(job, **environment):
        code, answer, text = run(job, **environment)
        assert code == 0, text[-6000:]
        assert answer is not None, text[-6000:]
        return answer, text

    return found
