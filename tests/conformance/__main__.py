"""Runs the suite: ``python -m tests.conformance [name or part of a name ...]``."""

import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import unittest

from tests.conformance import exclusions

# The suite has tests for an exact world of 4, and tests that it skips in a world of less than 8.
_WORLD_SIZE, _LARGE_WORLD_SIZE = "4", "8"

# One test may take this long before torch's suite dumps its stacks and kills it.
_TEST_LIMIT_S = "120"


class _Result(unittest.TextTestResult):
    """Prints one line per test, and fails on a skip that nobody has accepted."""

    def startTest(self, test):  # noqa: N802, unittest's name
        self.started = time.monotonic()
        super().startTest(test)

    def addSuccess(self, test):  # noqa: N802
        super().addSuccess(test)
        self.stream.writeln(f"    {time.monotonic() - self.started:.1f} s")

    def addSkip(self, test, reason):  # noqa: N802
        accepted = any(re.search(pattern, reason) for pattern in exclusions.ACCEPTED_SKIPS)
        if accepted or reason == exclusions.SMALL_WORLD:
            super().addSkip(test, reason)
            return
        try:
            raise AssertionError(f"skipped for a reason that no list has: {reason}")
        except AssertionError:
            self.addFailure(test, sys.exc_info())


def main() -> int:
    directory = tempfile.mkdtemp(prefix="dmlcomm-conformance-")
    os.environ.update(
        TEMP_DIR=directory,
        INIT_METHOD=f"file://{directory}/shared_init_file",
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=_TEST_LIMIT_S,
        TORCH_LOGS="-all",
    )
    multiprocessing.set_forkserver_preload(["tests.conformance.suite"])
    try:
        result = _run(_chosen(sys.argv[1:]), _WORLD_SIZE)
        small = [test for test, reason in result.skipped if reason == exclusions.SMALL_WORLD]
        again = _run([test._testMethodName for test in small], _LARGE_WORLD_SIZE)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    _print_summary(result, again)
    return 0 if result.wasSuccessful() and again.wasSuccessful() else 1


def _run(names: list[str], world_size: str) -> unittest.TestResult:
    os.environ["WORLD_SIZE"] = world_size
    from tests.conformance.suite import TestDmlcomm

    suite = unittest.TestSuite(TestDmlcomm(name) for name in names)
    return unittest.TextTestRunner(resultclass=_Result, verbosity=2).run(suite)


def _chosen(parts: list[str]) -> list[str]:
    os.environ["WORLD_SIZE"] = _WORLD_SIZE  # the suite asks when it is loaded
    from tests.conformance.suite import TestDmlcomm

    names = unittest.TestLoader().getTestCaseNames(TestDmlcomm)
    unknown = set(exclusions.EXCLUDED) - set(names)
    assert not unknown, f"exclusions of tests that the suite does not have: {sorted(unknown)}"
    return [
        name
        for name in names
        if name not in exclusions.EXCLUDED and (not parts or any(part in name for part in parts))
    ]


def _print_summary(result: unittest.TestResult, again: unittest.TestResult) -> None:
    failed = sum(len(r.failures) + len(r.errors) for r in (result, again))
    skipped = len(result.skipped) - again.testsRun + len(again.skipped)
    passed = result.testsRun - failed - skipped
    print(
        f"{passed} passed, {failed} failed, {skipped} skipped by the suite (not about the CPU or "
        f"not about this backend), {len(exclusions.EXCLUDED)} left out:"
    )
    for name, reason in exclusions.EXCLUDED.items():
        print(f"  {name}: {reason}")


if __name__ == "__main__":
    sys.exit(main())
