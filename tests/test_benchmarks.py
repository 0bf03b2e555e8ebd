"""The benchmarks measure what docs/numbers.md says, and see wrong results."""

import json
import subprocess
import sys

import pytest
import torch

from benchmarks import bars, builds, cuda, lab, openmpi, report
from benchmarks.engine import MIN_ITERATIONS, Measurement, Settings, session, sizes
from benchmarks.lab_run import all_reduce_bound_s
from benchmarks.operations import OPERATIONS, Case, sum_of_values, values
from benchmarks.ranks import RankError, Ranks
from dmlcomm.lab import build
from dmlcomm.lab.lab import shapes_of


def case_of(operation, num_ranks, count=999, dtype=torch.float32):
    return Case(operation, count * dtype.itemsize, dtype, num_ranks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8])
def test_inputs_add_up_exactly_in_any_order(dtype):
    case = case_of("all_reduce", 8, count=9000, dtype=dtype)
    inputs = [values(case, rank, 3, 0, case.count) for rank in range(8)]
    assert len({tuple(i[:9].tolist()) for i in inputs}) > 1
    total = inputs[5].clone()
    for rank in (2, 7, 0, 1, 6, 3, 4):
        total += inputs[rank]
    assert torch.equal(total, sum_of_values(case, 3, 0, case.count))


def test_values_from_the_middle_are_those_of_the_whole():
    case = case_of("all_reduce", 2)
    whole = values(case, 1, 5, 0, 10_000)
    assert torch.equal(values(case, 1, 5, 4000, 9001), whole[4000:9001])


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_result_that_did_not_arrive_is_counted_as_wrong(name, num_ranks):
    case, operation = case_of(name, num_ranks), OPERATIONS[name]
    wrong = 0
    for rank in range(num_ranks):
        buffers = operation.buffers(case, rank)
        operation.fill(buffers, case, rank, seed=1)
        wrong += operation.count_wrong(buffers, case, rank, seed=1)
    assert wrong > 0


pytestmark = pytest.mark.xdist_group("benchmarks")


@pytest.fixture(scope="module")
def gloo():
    settings = Settings(num_ranks=3, backends=("gloo",), iterations=7, rounds=2, seconds=0.05)
    with session(settings) as running:
        yield running


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_is_measured_and_right(gloo, name):
    (m,) = gloo.measure(name, 5000)
    assert (m.operation, m.backend, m.num_ranks, m.wrong) == (name, "gloo", 3, 0)
    assert m.count % 3 == 0
    assert m.size == 4 * m.count <= 5000
    assert 2 * MIN_ITERATIONS <= m.iterations <= 14
    assert m.least_us <= m.time_us <= m.greatest_us
    assert m.algbw == pytest.approx(m.size / m.time_us / 1e3)
    assert m.busbw == pytest.approx(m.algbw * OPERATIONS[name].wire_factor(3))
    assert m.bound_us > 0


def _fail_on_rank_1(worker):
    if worker.rank == 1:
        raise ValueError("a fault on purpose")


def test_failure_of_a_rank_is_shown():
    with (
        pytest.raises(RankError, match=r"(?s)rank 1 failed.*a fault on purpose"),
        Ranks(2, ["gloo"], {}) as ranks,
    ):
        ranks.call(_fail_on_rank_1)


@pytest.mark.skipif(openmpi.why_not() is not None, reason=str(openmpi.why_not()))
@pytest.mark.parametrize("name", openmpi.OPERATIONS)
def test_openmpi_is_measured_and_right(name):
    mpi = openmpi.OpenMpi(num_ranks=3)
    seconds, wrong = mpi.measure(case_of(name, 3), seconds=0.01, iterations=20)
    assert wrong == 0
    assert 5 <= len(seconds) <= 20
    assert all(second > 0 for second in seconds)


def measurement(backend, size, time_us, wrong=0):
    fields = dict.fromkeys(Measurement.__dataclass_fields__, 0)
    given = {"backend": backend, "size": size, "time_us": time_us, "wrong": wrong}
    return Measurement(**fields | given)


@pytest.mark.parametrize(
    ("gloo_us", "wrong", "passed"), [(40, 0, True), (39, 0, False), (80, 1, False)]
)
def test_the_worst_size_decides_a_bar_and_wrong_results_never_pass(gloo_us, wrong, passed):
    limit = bars.Limit("gloo", 4.0, (1024, 2048))
    by_size = {
        1024: {
            "dmlcomm": measurement("dmlcomm", 1024, 10, wrong),
            "gloo": measurement("gloo", 1024, 100),
        },
        2048: {
            "dmlcomm": measurement("dmlcomm", 2048, 10),
            "gloo": measurement("gloo", 2048, gloo_us),
        },
    }
    assert bars.judge(bars.SWEEPS[0], 2, limit, by_size).passed is passed


@pytest.mark.parametrize(
    ("text", "count"), [("4096", 4096), ("64K", 65536), ("1M", 1 << 20), ("2MiB", 2 << 20)]
)
def test_sizes_are_read_as_nccl_tests_reads_them(text, count):
    assert report.parse_bytes(text) == count


def test_sizes_grow_by_a_factor_up_to_the_last():
    assert list(sizes(1024, 20_000, 4)) == [1024, 4096, 16384]


def test_command_prints_columns_and_writes_json_lines(tmp_path):
    file = tmp_path / "result.json"
    arguments = "-o broadcast -b 1K -e 4K -f 4 --ranks 2 --backends gloo --seconds 0.02"
    command = [sys.executable, "-m", "benchmarks.collectives", *arguments.split()]
    result = subprocess.run(
        [*command, "--json", str(file)], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert "#wrong" in result.stdout
    first, *records = map(json.loads, file.read_text().splitlines())
    assert first["environment"]["torch"] == torch.__version__.partition("+")[0]
    assert [(r["size"], r["wrong"]) for r in records] == [(1024, 0), (4096, 0)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_is_told_that_nothing_was_measured():
    command = [sys.executable, "-m", "benchmarks.cuda"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert "finds no GPU" in result.stderr


def test_bars_of_cuda_compare_with_gloo_and_with_the_slower_part():
    def passed(ours, on_cpu, gloo, copies):
        times = {cuda.OURS: ours, cuda.ON_CPU: on_cpu, cuda.GLOO: gloo, cuda.COPIES: copies}
        return [verdict.passed for verdict in cuda.judge_all_reduce(2, times)]

    assert passed(ours=6.0, on_cpu=7.0, gloo=18.1, copies=3.0) == [True, True]
    assert passed(ours=6.0, on_cpu=3.0, gloo=17.9, copies=4.9) == [False, True]
    assert passed(ours=6.0, on_cpu=4.7, gloo=18.1, copies=3.0) == [True, False]
    assert cuda.judge_steps(2, {cuda.OURS: 5.0, cuda.GLOO: 10.1}).passed
    assert not cuda.judge_steps(2, {cuda.OURS: 5.1, cuda.GLOO: 10.1}).passed


def test_bars_of_the_lab_compare_with_the_bound_and_with_gloo():
    def result(backend, size, seconds, ratio, nics=1):
        shared = {"size": size, "nics": nics}
        return shared | {"backend": backend, "seconds": seconds, "ratio": ratio}

    met = [result("dmlcomm", 10**6, 1.0, 1.05), result("gloo", 10**6, 1.0, 1.3)]
    assert lab.judge(met) == []
    missed = [result("dmlcomm", 10**8, 1.1, 1.06), result("gloo", 10**8, 1.0, 1.09)]
    assert lab.judge(missed) == [
        "dmlcomm, 100 MB: 1.060 x the bound, at most 1.05",
        "dmlcomm, 100 MB: 1.100 x gloo's time, at most 1",
        "gloo, 100 MB: 1.090 x the bound, at most 1.08",
    ]
    on_one_of_two = [result("dmlcomm", 10**8, 0.5, 1.04, 2), result("gloo", 10**8, 1.0, 2.1, 2)]
    assert lab.judge(on_one_of_two) == []


def test_bound_of_a_lab_counts_every_nic_of_a_host():
    def bound_s(spec, rates, size=10**7):
        return all_reduce_bound_s(build(spec, shapes_of(rates)), size)

    assert bound_s("flat:4,1", "200mbit") == pytest.approx(2 * 3 / 4 * 0.4)
    assert bound_s("bcube:3,2", "200mbit") == pytest.approx(2 * 8 / 9 * 0.2)
    assert bound_s("flat:4,2", "200mbit,50mbit") == pytest.approx(2 * 3 / 4 * 0.32)
    assert bound_s("flat:4,1", "unlimited") is None


def test_two_builds_are_measured_in_turns(capfd, monkeypatch):
    options = ["--ranks", "2", "--sizes", "1KiB", "--rounds", "3", "--other-transport", "tcp"]
    monkeypatch.setattr(sys, "argv", ["builds", str(builds.THIS), *options])
    builds.main()
    *_, row = capfd.readouterr().out.splitlines()
    num_ranks, size, other, this, speed = (cell.strip() for cell in row.strip("| ").split("|"))
    assert (num_ranks, size) == ("2", "1 KiB")
    assert all(0 < float(time.removesuffix(" us")) < 1e6 for time in (other, this))
    assert float(speed.split()[0]) > 0


def test_speeds_of_two_builds_are_those_of_rounds():
    found = builds.Comparison(other_us=10, this_us=10, speeds=[0.5, 0.9, 1.0, 1.1, 4.0])
    assert [found.speed(part) for part in (0.25, 0.5, 0.75)] == [0.9, 1.0, 1.1]


def test_a_build_that_is_none_is_refused_or_named(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["builds", str(tmp_path)])
    with pytest.raises(SystemExit):
        builds.main()
    assert "has no folder dmlcomm; name a checkout that is built" in capfd.readouterr().err
    (tmp_path / "dmlcomm").mkdir()
    with (
        pytest.raises(RuntimeError, match=rf"a rank of {tmp_path} ended"),
        builds.builds([(tmp_path, "auto")], 1),
    ):
        pass
