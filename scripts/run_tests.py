#!/usr/bin/env python3
"""Runs the C++ tests of some build trees and the Python tests, and sums them in one closing line.

Every test case counts once: GoogleTest programs report their cases, a CTest test that is no
GoogleTest program is one case, and a program that dies without a report is one failure.
"""

import argparse
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def count_cases(report: Path) -> tuple[int, int]:
    """(passed, failed) of a JUnit-like report; skipped cases are neither."""
    passed = failed = 0
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is None and case.get("status", "run") not in (
            "notrun",
            "disabled",
        ):
            passed += 1
    return passed, failed


def run_ctest(tree: Path, seconds: int) -> tuple[int, int, bool]:
    reports = (tree / "test-reports").resolve()
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    summary = reports / "ctest.xml"
    print(f"== {tree}", flush=True)
    command = ["ctest", "--test-dir", str(tree), "--output-on-failure", "--no-tests=error"]
    command += ["--timeout", str(seconds), "--output-junit", str(summary)]
    environment = {**os.environ, "GTEST_OUTPUT": f"xml:{reports}/gtest/", "GTEST_BRIEF": "1"}
    status = subprocess.run(command, env=environment, check=False).returncode
    if not summary.exists():
        return 0, 1, False
    passed = failed = 0
    for test in ElementTree.parse(summary).getroot().iter("testcase"):
        ok = test.get("status") == "run"
        report = reports / "gtest" / f"{test.get('name')}.xml"
        if report.exists():
            cases = count_cases(report)
            passed += cases[0]
            # A program may also fail outside its cases, as in a leak found at exit.
            failed += cases[1] if ok else max(cases[1], 1)
        else:
            passed, failed = (passed + 1, failed) if ok else (passed, failed + 1)
    return passed, failed, status == 0


def run_pytest(folder: Path, report: Path) -> tuple[int, int, bool]:
    if not folder.is_dir():
        print(f"== {folder}: not there")
        return 0, 0, True
    report.unlink(missing_ok=True)
    print(f"== {folder}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", str(folder), f"--junitxml={report}"]
    status = subprocess.run(command, check=False).returncode
    if not report.exists():
        return 0, 1, False
    passed, failed = count_cases(report)
    return passed, failed, status == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ctest", type=Path, action="append", default=[], help="a build tree")
    parser.add_argument(
        "--pytest", type=Path, action="append", default=[], help="a folder of tests"
    )
    parser.add_argument(
        "--timeout", type=int, default=900, metavar="S", help="seconds a C++ program may take"
    )
    arguments = parser.parse_args()
    outcomes = [run_ctest(tree, arguments.timeout) for tree in arguments.ctest]
    for index, folder in enumerate(arguments.pytest):
        outcomes.append(run_pytest(folder, Path("build") / f"pytest-{index}.xml"))
    passed = sum(outcome[0] for outcome in outcomes)
    failed = sum(outcome[1] for outcome in outcomes)
    if not failed and not all(outcome[2] for outcome in outcomes):
        failed = 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
