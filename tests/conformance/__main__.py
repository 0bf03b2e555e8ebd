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
        if any(re.search(accepted, reason) for accepted in exclusions.ACCEPTED_SKIPS):
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
    )
    multiprocessing.set_forkserver_preload(["tests.conformance.suite"])
    try:
        runner = unittest.TextTestRunner(resultclass=_Result, verbosity=2)
        result = runner.run(_chosen(sys.argv[1:]))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    _print_summary(result)
    return 0 if result.wasSuccessful() else 1


def _chosen(parts: list[str]) -> unittest.TestSuite:
    from tests.conformance.suite import TestDmlcomm

    names = unittest.TestLoader().getTestCaseNames(TestDmlcomm)
    unknown = set(exclusions.EXCLUDED) - set(names)
    assert not unknown, f"exclusions of tests that the suite does not have: {sorted(unknown)}"
    chosen = [
        name
        for name in names
        if name not in exclusions.EXCLUDED and (not parts or any(part in name for part in parts))
    ]
    return unittest.TestSuite(TestDmlcomm(name) for name in chosen)


def _print_summary(result: unittest.TestResult) -> None:
    failed = len(result.failures) + len(result.errors)
    passed = result.testsRun - failed - len(result.skipped)
    print(
        f"{passed} passed, {failed} failed, {len(result.skipped)} skipped by the suite (not about "
        f"CPU or this backend), {len(exclusions.EXCLUDED)} left out:"
    )
    for name, reason in exclusions.EXCLUDED.items():
        print(f"  {name}: {reason}")


if __name__ == "__main__":
    sys.exit(main())
