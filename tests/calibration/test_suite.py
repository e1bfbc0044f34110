"""The suite on a CPU: its plan, resuming, what is skipped, and what several devices differ by."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from calibration import calibrate, suite, timing  # noqa: E402
from calibration.cases import Device, build  # noqa: E402
from calibration.plan import Point  # noqa: E402
from calibration.timing import Sample  # noqa: E402
from wmtp_sim.errors import InputError  # noqa: E402

CPU = torch.device("cpu")
HERE = Device(CPU, 0, 2**30, 1)


def silent(done: int, total: int, key: str) -> None:
    """A progress that nobody watches."""


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing takes no time."""
    monkeypatch.setattr(suite, "measure", lambda *_: Sample(1e-3, 1e-3, 1e-3, 5))


@pytest.mark.parametrize("models", [(), ("qwen3.5-35b-a3b",), ("deepseek-v3", "llama-3.1-8b")])
def test_cpu_plans_are_short(models: tuple[str, ...]) -> None:
    quick, whole = (calibrate.cpu_points_for(models, quick) for quick in (True, False))
    assert 4 < len(quick) <= len(whole) <= 30
    assert len({point.key for point in whole}) == len(whole)


@pytest.mark.parametrize("point", calibrate.cpu_points_for((), True), ids=lambda point: point.key)
def test_cpu_operators_are_right(point: Point) -> None:
    case = build(point, HERE)
    assert case.check() <= case.tolerance


def test_every_class_of_a_cpu_is_fitted_from_enough_points() -> None:
    counts: dict[str, int] = {}
    for point in calibrate.cpu_points_for((), True):
        name = f"{point.kernel}.{point.variant}" if point.kernel == "elementwise" else point.kernel
        counts[name] = counts.get(name, 0) + 1
    assert counts.pop("elementwise.empty") == 1
    assert min(counts.values()) >= 4


def test_resumes(instant: None, tmp_path: Path) -> None:
    points, path = calibrate.cpu_points_for((), True)[:6], tmp_path / "m.jsonl"
    assert suite.run(points[:2], path, CPU, silent).measured == 2
    path.write_bytes(path.read_bytes() + b'{"key": "gemm.torch[k=20')  # a crash while writing
    outcome = suite.run(points, path, CPU, silent)
    assert (outcome.resumed, outcome.measured) == (2, 4)
    assert [record["key"] for record in suite.read(path)[1]] == [point.key for point in points]


def test_unusable_points_are_measured_again(instant: None, tmp_path: Path) -> None:
    points, path = calibrate.cpu_points_for((), True)[:3], tmp_path / "m.jsonl"
    suite.run(points, path, CPU, silent)
    header, first, *others = path.read_text().splitlines()
    path.write_text("\n".join([header, json.dumps(json.loads(first) | {"seconds": float("nan")}), *others, ""]))
    assert suite.run(points, path, CPU, silent).measured == 1


def test_what_is_skipped_says_why(instant: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = calibrate.cpu_points_for((), True)[:4]
    built = suite.build

    def troubled(point: Point, where: Device) -> Any:
        if point == points[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if point == points[1]:
            raise RuntimeError("no kernel image is available\nand more")
        return replace(built(point, where), check=lambda: float("nan") if point == points[2] else 0.0)

    monkeypatch.setattr(suite, "build", troubled)
    outcome = suite.run(points, tmp_path / "m.jsonl", CPU, silent)
    reasons = dict(outcome.skipped)
    assert "free memory" in reasons[points[0].key]
    assert reasons[points[1].key].endswith("(no kernel image is available)")
    assert "disagrees" in reasons[points[2].key]
    assert outcome.measured == 1


def test_a_broken_device_ends_the_run(instant: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points, path, built = calibrate.cpu_points_for((), True)[:3], tmp_path / "m.jsonl", suite.build

    def failing(point: Point, where: Device) -> Any:
        if point == points[1]:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        return built(point, where)

    monkeypatch.setattr(suite, "build", failing)
    with pytest.raises(InputError, match=r"illegal memory access.*resumes"):
        suite.run(points, path, CPU, silent)
    assert len(suite.read(path)[1]) == 1


@pytest.mark.parametrize(("others", "throttled"), [((1234,), ()), ((), ("hardware slowdown",))])
def test_an_unfit_gpu_is_refused(others: tuple[int, ...], throttled: tuple[str, ...]) -> None:
    now = replace(suite.condition(CPU), others=others, throttled=throttled)
    with pytest.raises(InputError, match=r"1234|hardware slowdown"):
        suite.refuse_unfit(now)


def test_devices_differ_by_their_ratios(instant: None, tmp_path: Path) -> None:
    points, paths = calibrate.cpu_points_for((), True), (tmp_path / "a", tmp_path / "b")
    suite.run(points, paths[0], CPU, silent)
    header, *rows = map(json.loads, paths[0].read_text().splitlines())
    slower = [row | {"seconds": row["seconds"] * 1.1} for row in rows]
    paths[1].write_text("\n".join(map(json.dumps, [header, *slower])))
    spread = calibrate.device_spread(paths)
    assert spread.keys() == {point.kernel for point in points}
    assert spread["gemm"] == pytest.approx(0.1)


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "p.json"
    kept.write_text("old")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        calibrate.write_whole(kept, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]
    assert kept.read_text() == "old"


def test_noisy_points_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points, path = calibrate.cpu_points_for((), True)[:2], tmp_path / "m.jsonl"
    for slowest, noisy in ((9e-3, True), (1e-3, False)):
        monkeypatch.setattr(suite, "measure", lambda *_, slowest=slowest: Sample(1e-3, 1e-3, slowest, 5))
        assert suite.run(points, path, CPU, silent).measured == 2
        assert [record["noisy"] for record in suite.read(path)[1]] == [noisy] * 2


# --- how a process is brought to measure ---------------------------------------------------------------------------


class Recorded:
    """What `calibration.timing` asks of torch.cuda, counted."""

    def __init__(self) -> None:
        self.streams: list[Any] = []
        self.captures: list[Any] = []
        self.replays = 0

    def module(self) -> Any:
        from contextlib import contextmanager
        from types import SimpleNamespace

        recorded = self

        class Graph:
            def replay(self) -> None:
                recorded.replays += 1

        def stream(device: Any) -> str:
            recorded.streams.append(device)
            return f"stream of {device}"

        @contextmanager
        def graph(_: Any, stream: Any) -> Any:
            recorded.captures.append(stream)
            yield

        cuda = SimpleNamespace(CUDAGraph=Graph, graph=graph, Stream=stream, synchronize=lambda *_: None)
        return SimpleNamespace(cuda=cuda, zeros=lambda *_, device: torch.zeros(1), Tensor=torch.Tensor)


def test_graphs_are_captured_on_a_stream_of_their_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch keeps the stream of the first GPU that it captured on: another GPU's kernels would be launched there."""
    recorded = Recorded()
    timing.capture_stream.cache_clear()
    monkeypatch.setattr(timing, "torch", recorded.module())
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    for device in (first, second, second):
        timing.settle_graphs(device)
    assert recorded.streams == [first, second]
    assert set(recorded.captures) == {"stream of cuda:0", "stream of cuda:1"}
    assert len(recorded.captures) == recorded.replays == 3 * timing.SETTLING_GRAPHS
    assert timing.SETTLING_GRAPHS * timing.SETTLING_LAUNCHES > 3000
    timing.capture_stream.cache_clear()


def test_a_process_is_settled_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(timing, "settle_graphs", asked.append)
    monkeypatch.setattr(timing.torch, "randn", lambda *_, **__: torch.zeros(2, 2))
    monkeypatch.setattr(timing.torch.cuda, "synchronize", lambda *_: None)
    timing.warm_up(torch.device("cuda:0"), seconds=0.0)
    timing.warm_up(CPU, seconds=0.0)
    assert asked == [torch.device("cuda:0")]


def test_an_eight_bit_cache_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from calibration import cases

    point = Point("attention", "triton_packed", tuple(SMALL.items()))
    seen: list[Any] = []
    monkeypatch.setattr(cases.attention, "attention", lambda q, k, *_, **__: seen.append(k.dtype))
    for more, dtype in (((), torch.bfloat16), ((("kv_bytes", 1),), torch.float8_e4m3fn)):
        case = build(Point(point.kernel, point.variant, (*point.sizes, *more)), HERE)
        case.launch(0)
        assert seen.pop() == dtype
        assert case.operation.geometry[-1] == (1.0 if more else 2.0)
    assert float(case.operation.kv) == 2 * 64 * 2 * 16


SMALL = {"q_heads": 4, "kv_heads": 2, "head_dim": 16, "context": 64, "rows": 1, "batch": 1}
