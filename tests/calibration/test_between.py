"""Collectives between processes: what they send and answer, how groups end, and how their times become a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from calibration import between, calibrate, suite  # noqa: E402
from calibration import sweep_collectives as sweeping  # noqa: E402
from calibration.between import operation_of, points_between  # noqa: E402
from calibration.plan import Point  # noqa: E402
from calibration.sweep_collectives import COLLECTIVES, Call, Place, Sweep, call, fastest, merged  # noqa: E402
from wmtp_sim.catalog.gpus import load_gpu  # noqa: E402
from wmtp_sim.catalog.profiles import shipped_profile  # noqa: E402
from wmtp_sim.machine.machine import Machine  # noqa: E402
from wmtp_sim.work import collectives  # noqa: E402

CPU = torch.device("cpu")
Rows = list[dict[str, Any]]


def silent(done: int, total: int, key: str) -> None:
    """A progress that nobody watches."""


# --- what is run ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two() -> Sweep:
    """Two processes of this machine, joined by gloo."""
    return sweeping.sweep([2], [], [1024, 65536], 60.0, replays=3)


def test_every_collective_gives_the_right_numbers(two: Sweep) -> None:
    assert two.failures == ()
    assert {(row["collective"], row["bytes"]) for row in two.rows} == {
        (collective, payload) for collective in COLLECTIVES for payload in (1024, 65536)
    }
    assert all(row["right"] and row["how"] == "gloo" and 0 < row["p10"] <= row["seconds"] for row in two.rows)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_payload_is_the_larger_of_two_buffers(collective: str, ranks: int) -> None:
    one = call(collective, 4096, Place(1, ranks, CPU))
    assert max(one.sent.nbytes, one.expected.nbytes) == 4096


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_cost_model_counts_what_a_rank_sends(ranks: int) -> None:
    """Of a gathered whole a rank has its own part already; of what it scatters or deals out it keeps one part."""
    place = Place(0, ranks, CPU)
    sent, answered = (
        {name: getattr(call(name, 4096, place), field).nbytes for name in COLLECTIVES} for field in ("sent", "expected")
    )
    linked = {name: operation_of(name, ranks, 4096).bytes for name in COLLECTIVES}
    assert linked["all_gather"] == answered["all_gather"] - sent["all_gather"]
    assert linked["reduce_scatter"] == sent["reduce_scatter"] - answered["reduce_scatter"]
    assert linked["all_to_all"] == sent["all_to_all"] * (ranks - 1) / ranks
    assert linked["all_reduce"] == linked["all_gather"] + linked["reduce_scatter"]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_sums_are_exact(ranks: int) -> None:
    """Eight patterns add up to whole numbers that bf16 holds; no two ranks have the same pattern."""
    place = Place(0, ranks, CPU)
    patterns = [place.pattern(rank, 100) for rank in range(ranks)]
    assert place.reduced(100).long().tolist() == sum(pattern.long() for pattern in patterns).tolist()
    assert len({tuple(pattern.tolist()) for pattern in patterns}) == ranks


def test_a_wrong_answer_is_seen() -> None:
    sent, expected = torch.zeros(4), torch.arange(4.0)
    assert Call(sent, torch.arange(4.0), expected, lambda: sent).right()
    assert not sent.any()  # zero again, so that sums that are replayed stay finite
    assert not Call(sent, torch.ones(4), expected, lambda: sent).right()


def test_a_group_that_takes_too_long_is_ended() -> None:
    rows, failure = sweeping.group(2, (), (1024,), 0.0, 3)
    assert rows == []
    assert failure == "not done within 0 s"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the GPUs answer")
def test_a_rank_that_fails_says_why() -> None:
    rows, failure = sweeping.group(2, (0, 1), (1024,), 60.0, 3)
    assert rows == []
    assert failure is not None
    assert "cuda" in failure.lower() or "nvidia" in failure.lower()


def test_multicast_stays_off() -> None:
    assert sweeping.MULTICAST_OFF == {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


# --- what counts ---------------------------------------------------------------------------------------------------


def row(seconds: float, how: str = "nccl", right: bool = True, **other: Any) -> dict[str, Any]:
    times = {"seconds": seconds, "p10": seconds, "p90": seconds, "replays": 5}
    return {"collective": "all_reduce", "how": how, "ranks": 2, "bytes": 1024, "right": right} | times | other


def test_the_slowest_rank_counts_and_all_must_be_right() -> None:
    assert merged([[row(1e-5)], [row(2e-5)]]) == [row(2e-5)]
    assert merged([[row(1e-5, right=False)], [row(2e-5)]]) == [row(2e-5, right=False)]
    assert merged([[row(1e-5), row(1e-6, "one_shot")], [row(2e-5)]]) == [row(2e-5)]  # a rank was ended before


def test_the_fastest_way_counts() -> None:
    ways = [row(3e-5), row(1e-5, "one_shot"), row(2e-5, "two_shot"), row(9e-5, bytes=2048)]
    assert fastest(ways) == [ways[1], ways[3]]


# --- from times to a profile ---------------------------------------------------------------------------------------

H200 = load_gpu("h200")
#: The same GPU under a name for which nothing ships.
UNPUBLISHED = H200.model_copy(update={"name": "Unpublished"})
#: Made up: seconds of a launch, and the share of one link direction that each collective fills.
FLOOR_S = 6e-6
SHARES = {"all_reduce": 0.6, "all_gather": 0.4, "reduce_scatter": 0.45, "all_to_all": 0.5}


def made_up(counts: Any, payloads: Any) -> Rows:
    link = H200.scale_up_bidir_bytes_per_s / 2
    return [
        row(
            FLOOR_S + float(operation_of(name, ranks, payload).bytes) / (share * link),
            "one_shot" if name == "all_reduce" else "nccl",
            collective=name,
            ranks=ranks,
            bytes=payload,
        )
        for name, share in SHARES.items()
        for ranks in counts
        for payload in payloads
    ]


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """A machine with four GPUs whose collectives take what `made_up` says; the list holds what it was asked for."""
    asked: list[Any] = []

    def sweep(counts: Any, gpus: Any, payloads: Any, seconds: float) -> Sweep:
        asked.append((counts, payloads))
        return Sweep(tuple(made_up(counts, payloads)), ("4 ranks: no peer access",))

    monkeypatch.setattr(between, "sweep", sweep)
    return asked


def test_plans_have_every_collective_of_every_group() -> None:
    whole, quick = points_between([2, 4]), points_between([2, 4], quick=True)
    assert {point["ranks"] for point in whole} == {2, 4}
    assert {point["ranks"] for point in quick} == {4}
    assert set(quick) < set(whole)
    assert {point["bytes"] for point in whole} == {2**power for power in range(10, 26)}
    assert len({point.key for point in whole}) == len(whole) == 2 * 4 * 16
    assert points_between([]) == []


def test_a_gpu_alone_and_a_cpu_have_no_collectives() -> None:
    assert between.groups_around(CPU) == []
    assert [sweeping.groups_of(range(gpus)) for gpus in (0, 1, 2, 3, 8)] == [[], [], [2], [2], [2, 4, 8]]


def test_times_become_models_of_each_kind(swept: Rows, tmp_path: Path) -> None:
    points = [point for point in points_between([2, 4]) if point["bytes"] in sweeping.PAYLOADS[::3]]
    path = tmp_path / "m.jsonl"
    outcome = suite.run(points, path, CPU, silent)
    assert (outcome.measured, outcome.skipped) == (len(points), (("collectives", "4 ranks: no peer access"),))
    header, records = suite.read(path)
    assert header is not None
    assert {record["how"] for record in records if record["variant"] == "all_reduce"} == {"one_shot"}
    profile, _ = calibrate.build_profile(header["environment"], records, UNPUBLISHED)
    machine = Machine(UNPUBLISHED, profile)
    for name, share in SHARES.items():
        model = profile.kernels["collective" if name == "all_reduce" else f"collective.{name}"]
        assert model.bandwidth == pytest.approx(share, rel=0.05)
        assert model.floor_s == pytest.approx(FLOOR_S, rel=0.05)
        operation = operation_of(name, 4, 2**20)
        (seconds,) = (r["seconds"] for r in made_up([4], [2**20]) if r["collective"] == name)
        assert float(machine.time(operation).seconds) == pytest.approx(seconds, rel=0.02)


def test_all_reduces_that_ship_for_a_gpu_come_before_ours(swept: Rows, tmp_path: Path) -> None:
    """Engines' own are faster than any timed here; the rest is taken as measured, and all points are kept."""
    path = tmp_path / "m.jsonl"
    suite.run(points_between([2], quick=True), path, CPU, silent)
    header, records = suite.read(path)
    assert header is not None
    profile, reports = calibrate.build_profile(header["environment"], records, H200)
    shipped = shipped_profile(H200)
    assert shipped is not None
    assert profile.kernels["collective"] == shipped.kernels["collective"]
    assert {report.name for report in reports} == {f"collective.{name}" for name in SHARES} - {"collective.all_reduce"}
    machine = Machine(H200, profile)
    for report in reports:  # two ranks as measured, four and eight as they ship
        measured = profile.kernels[report.name].measured
        assert measured is not None
        assert {entry.geometry for entry in measured.geometries} == {(2.0,), (4.0,), (8.0,)}
        name = report.name.partition(".")[2]
        (seconds,) = (
            r["seconds"] for r in records if (r["variant"], r["sizes"]["bytes"]) == (name, sweeping.PAYLOADS[0])
        )
        assert float(machine.time(operation_of(name, 2, sweeping.PAYLOADS[0])).seconds) == pytest.approx(
            seconds, rel=0.02
        )
    assert {record["variant"] for record in profile.measurements} == set(COLLECTIVES)

    upper, _ = calibrate.build_profile(header["environment"], records, UNPUBLISHED)
    assert upper.kernels["collective"].floor_s == pytest.approx(FLOOR_S, rel=0.05)


def test_what_was_measured_is_not_measured_again(swept: Rows, tmp_path: Path) -> None:
    points, path = points_between([2]), tmp_path / "m.jsonl"
    assert suite.run(points[:3], path, CPU, silent).measured == 3
    assert suite.run(points, path, CPU, silent).resumed == 3
    assert suite.run(points, path, CPU, silent).measured == 0
    assert len(swept) == 2


def test_a_restless_collective_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    points: list[Point] = points_between([2])[:1]
    for slowest in (2e-5, 1e-5):
        found = Sweep((row(1e-5, p90=slowest, bytes=points[0]["bytes"]),), ())
        monkeypatch.setattr(between, "sweep", lambda *_, found=found: found)
        suite.run(points, tmp_path / "m.jsonl", CPU, silent)
        assert [r["noisy"] for r in suite.read(tmp_path / "m.jsonl")[1]] == [slowest > 1e-5]


def test_one_gpu_keeps_the_collectives_that_ship_for_it() -> None:
    shipped = shipped_profile(H200)
    assert shipped is not None
    kept = [r for r in shipped.measurements if r["kernel"] != "collective"]
    copies = [record for record in kept if record["kernel"] == "copy"]
    here = dict(shipped.provenance)
    profile, _ = calibrate.build_profile(here, copies, H200)
    ours = {name for name in shipped.kernels if name.split(".")[0] == "collective"}
    assert {name: profile.kernels.get(name) for name in ours} == {name: shipped.kernels[name] for name in ours}
    assert "collective.deepep" in ours
    nothing_ships = load_gpu("l4")
    assert shipped_profile(nothing_ships) is None
    assert not ours & calibrate.build_profile(here, copies, nothing_ships)[0].kernels.keys()


def test_all_reduces_are_the_class() -> None:
    """The cost model asks for all-reduces by no variant, and for others by name."""
    assert collectives.all_reduce(1.0, 2).variant == ""
    assert {operation_of(name, 2, 1024).variant for name in COLLECTIVES} == {"", *COLLECTIVES} - {"all_reduce"}
