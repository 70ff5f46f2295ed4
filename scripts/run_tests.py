#!/usr/bin/env python3
"""Runs the C++ tests of some build trees and the Python tests, and sums them in one closing line.

Every test case counts once: GoogleTest programs report their cases, a CTest test that is no
GoogleTest program is one case, and a program that dies without a report is one failure. Tests run
beside each other on every core; Python tests with the mark `alone` run afterwards. The slowest are
named at the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

SLOWEST = 10
NO_TESTS = 5  # pytest's exit code


class Outcome(NamedTuple):
    passed: int = 0
    failed: int = 0
    ok: bool = True  # what the runner said; it may fail where no case does
    seconds: tuple[tuple[float, str], ...] = ()  # of every case, with its name


def read_report(report: Path) -> Outcome:
    """Of a JUnit-like report; skipped cases are neither passed nor failed."""
    passed = failed = 0
    seconds = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        seconds.append((float(case.get("time") or 0.0), name))
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is None and case.get("status", "run") not in (
            "notrun",
            "disabled",
        ):
            passed += 1
    return Outcome(passed, failed, True, tuple(seconds))


def total(outcomes: list[Outcome]) -> Outcome:
    return Outcome(
        sum(outcome.passed for outcome in outcomes),
        sum(outcome.failed for outcome in outcomes),
        all(outcome.ok for outcome in outcomes),
        tuple(pair for outcome in outcomes for pair in outcome.seconds),
    )


def run_ctest(tree: Path, seconds: int, jobs: int) -> Outcome:
    reports = (tree / "test-reports").resolve()
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    summary = reports / "ctest.xml"
    print(f"== {tree}", flush=True)
    command = ["ctest", "--test-dir", str(tree), "--output-on-failure", "--no-tests=error"]
    command += ["--timeout", str(seconds), "--output-junit", str(summary), "-j", str(jobs)]
    environment = {**os.environ, "GTEST_BRIEF": "1"}
    if jobs > 1:
        # A thread that waits leaves its core to another program.
        environment.setdefault("OMP_WAIT_POLICY", "passive")
    status = subprocess.run(command, env=environment, check=False).returncode
    if not summary.exists():
        return Outcome(failed=1, ok=False)
    outcomes = [Outcome(ok=status == 0)]
    for test in ElementTree.parse(summary).getroot().iter("testcase"):
        ok = test.get("status") == "run"
        name = str(test.get("name"))
        report = reports / "gtest" / f"{name}.xml"
        if report.exists():
            cases = read_report(report)
            # A program may also fail outside its cases, as in a leak found at exit.
            outcomes.append(cases._replace(failed=cases.failed if ok else max(cases.failed, 1)))
        else:
            took = ((float(test.get("time") or 0.0), name),)
            outcomes.append(Outcome(int(ok), int(not ok), True, took))
    return total(outcomes)


def python_environment() -> dict[str, str]:
    """Keeps bytecode even where the machine is set not to: tests start Python hundreds of times,
    and without it every import of torch takes twice as long."""
    environment = dict(os.environ)
    if environment.pop("PYTHONDONTWRITEBYTECODE", ""):
        environment["PYTHONPYCACHEPREFIX"] = str(Path("build", "bytecode").resolve())
    return environment


def run_pytest(folder: Path, report: Path, jobs: int) -> Outcome:
    if not folder.is_dir():
        print(f"== {folder}: not there")
        return Outcome()
    # Part, what pytest is told of it, and whether it may be empty.
    parts: list[tuple[str, list[str], bool]] = [("all", [], False)]
    if jobs > 1:
        workers = ["-n", str(jobs), "--dist", "worksteal"]
        parts = [("many", ["-m", "not alone", *workers], False), ("alone", ["-m", "alone"], True)]
    outcomes = []
    for part, choice, may_be_empty in parts:
        print(f"== {folder}{', one at a time' if part == 'alone' else ''}", flush=True)
        written = report.with_name(f"{report.stem}-{part}.xml")
        written.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", str(folder), f"--junitxml={written}"]
        status = subprocess.run([*command, *choice], env=python_environment()).returncode
        if not written.exists():
            outcomes.append(Outcome(failed=1, ok=False))
            continue
        ok = status == 0 or (may_be_empty and status == NO_TESTS)
        outcomes.append(read_report(written)._replace(ok=ok))
    return total(outcomes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ctest", type=Path, action="append", default=[], help="a build tree")
    parser.add_argument(
        "--pytest", type=Path, action="append", default=[], help="a folder of tests"
    )
    parser.add_argument(
        "--timeout", type=int, default=900, metavar="S", help="seconds a C++ program may take"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="default: every core"
    )
    arguments = parser.parse_args()
    outcomes = [run_ctest(tree, arguments.timeout, arguments.jobs) for tree in arguments.ctest]
    for index, folder in enumerate(arguments.pytest):
        report = Path("build") / f"pytest-{index}.xml"
        outcomes.append(run_pytest(folder, report, arguments.jobs))
    found = total(outcomes)
    print("== slowest")
    for seconds, name in sorted(found.seconds, reverse=True)[:SLOWEST]:
        print(f"{seconds:8.1f} s  {name}")
    failed = found.failed if found.ok else max(found.failed, 1)
    print(f"{found.passed} passed, {failed} failed")
    return 1 if failed or not found.passed else 0


if __name__ == "__main__":
    sys.exit(main())
