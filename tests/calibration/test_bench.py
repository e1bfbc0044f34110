"""The whole-step bench on tiny models: what it computes, how many kernels it launches, what it reports.

Decoding row by row and verifying the same rows at once must agree: states, causal tails, caches and lists all have to
be right for that.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from typing import Any

import pytest
import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode

from calibration.bench import run as command
from calibration.bench.layers import Moe, UnsupportedError, build, skewed_experts
from calibration.bench.model import (
    Demand,
    Lists,
    Phases,
    Stack,
    bytes_needed,
    fitting_repeats,
    layout,
    parts_of,
    step_launches,
)
from calibration.bench.passes import Place
from calibration.bench.run import Point, measure_steps
from calibration.kernels.references import relative_error
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.models import load_model
from wmtp_sim.spec import model as spec
from wmtp_sim.spec.drafter import mtp_drafter
from wmtp_sim.spec.precision import Precision
from wmtp_sim.work.layers import Pass as WorkPass
from wmtp_sim.work.operation import Operation
from wmtp_sim.work.passes import draft_forward, target_forward
from wmtp_sim.work.weights import weights_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# The interpreter truncates to bf16, so that it computes in float32 and is held to more.
PLACE = Place(DEVICE, torch.bfloat16 if DEVICE.type == "cuda" else torch.float32)
TOLERANCE = 3e-2 if DEVICE.type == "cuda" else 2e-5
HIDDEN, VOCAB, CONTEXT, DEPTH = 64, 96, 70, 2

GQA = spec.Attention(q_heads=4, kv_heads=2, head_dim=32, v_head_dim=32)
GATED = GQA.model_copy(update={"output_gate": "elementwise", "qk_norm": "per_head", "qkv_bias": True})
MLA = spec.LatentAttention(
    heads=4, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16
)
GDN = spec.GatedDeltaNet(k_heads=2, v_heads=4, k_dim=16, v_dim=16, conv_kernel=4)
MAMBA = spec.Mamba2(heads=4, head_dim=16, groups=2, state_dim=16, conv_kernel=4)
MLP = spec.Mlp(inner=48)
MOE = spec.Moe(experts=6, top_k=2, inner=32, shared_inner=32, shared_gate=True)
LATENT_MOE = spec.Moe(experts=6, top_k=2, inner=32, gated=False, shared_inner=48, latent=32)
PLAIN_MOE = spec.Moe(experts=6, top_k=2, inner=32)


def layer(mixer: Any, channel: Any, count: int = 1) -> spec.Block:
    return spec.Block(count=count, mixers=(mixer,), channels=(channel,), norms=2)


def alone(part: Any, count: int = 1) -> spec.Block:
    mixers, channels = ((), (part,)) if isinstance(part, spec.Moe | spec.Mlp) else ((part,), ())
    return spec.Block(count=count, mixers=mixers, channels=channels, norms=1)


def tiny(name: str, blocks: tuple[spec.Block, ...], head: tuple[spec.Block, ...], **options: Any) -> spec.Model:
    mtp = spec.MtpHead(blocks=head) if head else None
    return spec.Model(
        name=name,
        family="tiny",
        hidden=HIDDEN,
        vocab=VOCAB,
        blocks=blocks,
        max_context=1024,
        mtp=mtp,
        precision=Precision(),
        **options,
    )


MODELS = {
    "hybrid": tiny("hybrid", (layer(GDN, MOE), layer(GATED, MOE)), (layer(GATED, MOE),)),
    "mamba": tiny("mamba", (alone(MAMBA), alone(LATENT_MOE), alone(GQA)), (alone(GQA), alone(LATENT_MOE)), rope=False),
    "latent": tiny("latent", (layer(MLA, MLP), layer(MLA, MOE)), (layer(MLA, MOE),)),
    "dense": tiny("dense", (layer(GQA, MLP, count=2),), (layer(GQA, MLP),), tied_embeddings=True),
    "small": tiny("small", (layer(MLA.model_copy(update={"q_lora_rank": None}), spec.Mlp(inner=48, gated=False)),), ()),
    "plain": tiny("plain", (layer(GQA, PLAIN_MOE),), ()),
}


def demand(batch: int = 2) -> Demand:
    length = CONTEXT + DEPTH + 1
    return Demand(slots=length * batch, positions=length, shapes=frozenset({(batch, 1), (batch, DEPTH + 1)}))


@cache
def stack(name: str, batch: int = 2) -> Stack:
    torch.manual_seed(0)
    return Stack(MODELS[name], PLACE, demand(batch))


def randomised(phases: Phases) -> None:
    """Fresh tokens and states, as a step finds them."""
    for tokens in (phases.bonus, phases.drafts):
        tokens.copy_(torch.randint(VOCAB, tokens.shape, device=DEVICE))
    if phases.states is not None:
        for state in (phases.states.recurrent, phases.states.conv):
            state.normal_(0, 0.3)


# --- what it computes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_verify_is_as_many_decode_steps(name: str) -> None:
    """Logits of every row, the recurrent state after every row, and the state committed after the last accepted one."""
    batch = 2
    built = stack(name)
    verify = Phases(built, CONTEXT, batch, DEPTH)
    randomised(verify)
    before = None if verify.states is None else (verify.states.recurrent.clone(), verify.states.conv.clone())
    verify.verify()
    logits = verify.logits.view(batch, DEPTH + 1, VOCAB).clone()
    tokens = torch.cat([verify.bonus[:, None], verify.drafts], 1)
    if before is not None:
        assert torch.equal(verify.states.recurrent, before[0])
        assert torch.equal(verify.states.conv, before[1])
    forget(built, batch)
    for row in range(DEPTH + 1):
        decode = Phases(built, CONTEXT + row, batch)
        decode.bonus.copy_(tokens[:, row])
        decode.verify()
        assert relative_error(decode.logits, logits[:, row]) < TOLERANCE, row
        if verify.states is not None:
            assert relative_error(decode.states.recurrent, verify.states.snapshots[:, :, row]) < TOLERANCE
            assert relative_error(decode.states.conv, verify.states.columns[:, :, row + 1 : row + 4]) < TOLERANCE


def forget(built: Stack, batch: int) -> None:
    """Poisons every cache entry past the context."""
    span = built.demand.slots // batch
    for part in parts_of(built.blocks()):
        for cache_name in ("k_cache", "v_cache", "cache"):
            if hasattr(part, cache_name):
                rows = getattr(part, cache_name)[: span * batch]
                rows.view(batch, span, *rows.shape[1:])[:, CONTEXT:] = float("nan")


@pytest.mark.parametrize("name", ["hybrid", "mamba", "latent", "dense"])
def test_an_extend_is_as_many_narrow_passes(name: str) -> None:
    """The head's output for the accepted row, against one row at a time over the same cache."""
    batch, built = 2, stack(name)
    step = Phases(built, CONTEXT, batch, DEPTH)
    randomised(step)
    step.best.copy_(torch.randint(VOCAB, step.best.shape, device=DEVICE))
    step.hidden.normal_()
    hidden = step.hidden.view(batch, DEPTH + 1, HIDDEN).clone()
    for row in range(DEPTH + 1):
        step.accepted.fill_(row)
        step.extend()
        together, proposed = step.draft_hidden.clone(), step.drafts[:, 0].clone()
        lists = Lists(built, batch, CONTEXT + row, rows=1)
        lists.build()
        embedded = step.embed(step.best[:, row], None, "embedded")
        out = built.head.forward(embedded, hidden[:, row].contiguous(), step.draft_hidden, None, lists.passes[0])
        assert relative_error(out, together) < TOLERANCE
        assert torch.equal(step.draft_logits.argmax(-1), proposed)


@pytest.mark.parametrize("name", ["hybrid", "mamba", "latent", "dense"])
def test_a_whole_step_is_finite_and_chained(name: str) -> None:
    """draft, verify, sample, extend: every narrow pass embeds what the one before it proposed."""
    built = stack(name)
    step = Phases(built, CONTEXT, 2, DEPTH, narrow=(16, 4), wide=(16, 4))
    randomised(step)
    for function in step.available.values():
        function()
    for values in (step.hidden, step.logits, step.draft_hidden, step.draft_logits):
        assert torch.isfinite(values).all()
    assert torch.equal(step.best.view(-1), step.logits.argmax(-1))
    assert ((step.drafts >= 0) & (step.drafts < VOCAB)).all()
    start = step.draft_hidden.clone()
    outcomes = []
    for token in (1, 2):
        step.draft_hidden.copy_(start)
        step.drafts[:, 0] = token
        step.draft()
        outcomes.append(step.draft_logits.clone())
    assert not torch.allclose(*outcomes)


def test_bf16_is_finite() -> None:
    """The type that is measured; the interpreter truncates to it."""
    built = Stack(MODELS["hybrid"], Place(DEVICE), demand(1))
    step = Phases(built, CONTEXT, 1, DEPTH)
    for function in step.available.values():
        function()
    for values in (step.hidden, step.logits, step.draft_hidden, step.draft_logits):
        assert values.dtype == torch.bfloat16
        assert torch.isfinite(values).all()


@pytest.mark.parametrize("name", ["hybrid", "mamba"])
@pytest.mark.parametrize("agreeing", [0, 1, 2])
def test_the_accepted_state_is_committed(name: str, agreeing: int) -> None:
    """As many drafts as agree are accepted; states, first token and committed tokens go on from there."""
    built = stack(name)
    step = Phases(built, CONTEXT, 2, DEPTH)
    randomised(step)
    step.verify()
    best = step.logits.argmax(-1).view(2, -1)
    step.drafts.copy_((best[:, :-1] + torch.tensor([0] * agreeing + [1] * (DEPTH - agreeing), device=DEVICE)) % VOCAB)
    step.sample()
    assert step.accepted.tolist() == [agreeing] * 2
    assert step.next_committed.tolist() == [CONTEXT + agreeing + 1] * 2
    assert torch.equal(step.bonus, best[:, agreeing])
    assert torch.equal(step.states.recurrent, step.states.snapshots[:, :, agreeing])
    assert torch.equal(step.states.conv, step.states.columns[:, :, agreeing + 1 : agreeing + 4])


@pytest.mark.parametrize("window", [(CONTEXT, 0), (CONTEXT - 4, 4), (1000, 1000)])
def test_a_window_that_holds_the_context_is_native(window: tuple[int, int]) -> None:
    native, windowed = (Phases(stack("dense"), CONTEXT, 2, DEPTH, policy, policy) for policy in (None, window))
    outcomes = []
    for step in (native, windowed):
        torch.manual_seed(5)
        randomised(step)
        for buffer in (step.draft_hidden, step.hidden):  # as the passes before left them
            buffer.normal_()
        step.draft()
        outcomes.append(step.draft_logits.clone())
        step.extend()
        outcomes.append(step.draft_logits.clone())
    assert torch.equal(outcomes[0], outcomes[2])
    assert torch.equal(outcomes[1], outcomes[3])


def test_a_window_shortens_lists() -> None:
    """Sink and window tokens, then the drafted ones: 4 + 16 + 1 and + 2; the target still attends everything."""
    step = Phases(stack("dense"), CONTEXT, 2, depth=3, narrow=(16, 4), wide=(16, 4))
    step.build_lists()
    assert step.narrow.lengths.tolist() == [[21, 21], [22, 22]]
    assert step.wide.lengths.tolist() == [[24, 24]]
    assert step.target.lengths.tolist() == [[CONTEXT + 4] * 2]
    span = step.stack.demand.slots // 2
    expected = [0, 1, 2, 3, *range(CONTEXT - 16, CONTEXT + 2)]
    assert step.narrow.listed[1, 1].tolist() == [span + position for position in expected]


# --- what it launches ------------------------------------------------------------------------------------------

#: Kernels that are the core of a layer or part of sampling; all others stand around something. None: measured as part
#: of the core that it helps.
CLASSES = {
    ("attention", "_attend"): "attention",
    ("attention", "_combine"): None,
    ("mla", "_split_kernel"): "mla",
    ("mla", "_combine_kernel"): None,
    ("moe", "_product_kernel"): "moe",
    ("moe", "_count_kernel"): None,
    ("moe", "_align_kernel"): None,
    ("moe", "_activation_kernel"): None,
    ("moe", "_sum_kernel"): None,
    ("recurrent", "_delta_kernel"): "recurrent",
    ("recurrent", "_mamba2_kernel"): "recurrent",
    ("recurrent", "_conv_kernel"): "recurrent",
    ("index", "_build"): "index_build",
    ("small", "_accept_kernel"): "sample",
    ("fused", "_hand_over_kernel"): "sample",
    ("fused", "_commit_kernel"): "copy",
}


class Products(TorchDispatchMode):
    """Counts torch's own kernels: matrix products, and argmax, which is two on a GPU."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.counts["gemm"] += name in ("mm", "bmm")
        self.counts["sample"] += 2 * (name == "argmax")
        return func(*args, **kwargs or {})


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], dict[str, int]]:
    """Runs a phase and returns how many kernels of each class it really launched."""
    counts: Counter[str] = Counter()
    for kind in (triton.runtime.JITFunction, triton.runtime.interpreter.InterpretedFunction):
        original = kind.run

        def run(self: Any, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            where = (self.fn.__module__.rsplit(".", 1)[-1], self.fn.__name__)
            counts[CLASSES.get(where, "elementwise")] += 1
            return original(self, *args, **kwargs)

        monkeypatch.setattr(kind, "run", run)

    def launched(phase: Callable[[], None]) -> dict[str, int]:
        counts.clear()
        with Products(counts):
            phase()
        return {name: number for name, number in counts.items() if name and number}

    return launched


@pytest.mark.parametrize("name", MODELS)
def test_launches_are_those_of_the_engine_file(name: str, counted: Any) -> None:
    """Kernels really launched, the bench's own count, and the cost model's operations under bench.toml agree."""
    model, built = MODELS[name], stack(name)
    step, base = (Phases(built, CONTEXT, 2, depth) for depth in (DEPTH, 0))
    own = step_launches(step) | step_launches(base)
    predicted = engine_launches(model)
    phases = base.available | step.available
    assert set(own) == set(predicted) == set(phases)
    for phase, function in phases.items():
        assert counted(function) == own[phase] == predicted[phase], phase


def engine_launches(model: spec.Model) -> dict[str, dict[str, int]]:
    """Launches of each phase by kernel class, from the cost model's operations and the bench's engine file."""
    engine, drafter = load_engine("bench"), mtp_drafter(model)
    sampling = Counter(sample=int(engine.sample_launches))

    def work(rows: int) -> WorkPass:
        return WorkPass(batch=2.0, rows=float(rows), attended=float(CONTEXT), kv_bytes=2.0, state_bytes=4.0)

    def index(phase: str) -> Counter[str]:
        return Counter(index_build=sum(int(build.launches) for build in engine.index if build.phase == phase))

    def launched(operations: Iterator[Operation]) -> Counter[str]:
        counts: Counter[str] = Counter()
        for operation in operations:
            around = operation.name.removeprefix("elementwise.")
            scale = engine.elementwise[around] if operation.kernel == "elementwise" else 1
            counts[operation.kernel] += int(operation.launches * operation.repeats * scale)
        return counts

    stateful = any(mixer.kind in ("gdn", "mamba2") for block in model.blocks for mixer in block.mixers)
    phases = {
        "base": launched(target_forward(model, work(1))) + index("base") + sampling,
        "verify": launched(target_forward(model, work(DEPTH + 1))) + index("verify"),
        "sample": sampling + Counter(copy=int(stateful and engine.state.commit_copies > 0)),
    }
    if drafter is not None:
        narrow = launched(draft_forward(drafter, work(1), 2.0))
        phases["draft"] = Counter({name: count * (DEPTH - 1) for name, count in narrow.items()}) + index("draft")
        phases["extend"] = launched(draft_forward(drafter, work(DEPTH + 1), 2.0, wide=True)) + index("extend")
    return {name: dict(counts) for name, counts in phases.items()}


@pytest.mark.parametrize("part", [GQA, GATED, MLA, GDN, MAMBA, MLP, MOE, LATENT_MOE, PLAIN_MOE], ids=lambda p: p.kind)
def test_one_product_per_matrix(part: Any) -> None:
    """The built matrices are those that the cost model lists, in name and number of weights."""
    listed = {matrix.name: matrix.params for matrix in weights_of(part, HIDDEN).matrices}
    assert {name: weight.numel() for name, weight in build(part, HIDDEN, PLACE).matrices.items()} == listed


# --- what it builds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fixed", "unit", "repeats"),
    [
        ("qwen3.5-35b-a3b", [], [3, 1], 10),
        ("nemotron-3-super-120b-a12b", [], [5, 5, 1], 8),
        ("nemotron-3-nano-30b-a3b", [6], [1, 1], 23),
        ("deepseek-v3", [3], [1], 58),
        ("llama-3.1-8b", [], [1], 32),
    ],
)
def test_layout(name: str, fixed: list[int], unit: list[int], repeats: int) -> None:
    model = load_model(name)
    plan = layout(model.blocks)
    assert [block.count for block in plan.fixed] == fixed
    assert [block.count for block in plan.unit] == unit
    assert plan.repeats == repeats
    assert sum(fixed) + repeats * sum(unit) == model.layers


def test_what_fits_is_built() -> None:
    """A 35B hybrid with 1M tokens fits 120 GB whole; a 671B model by some of its repeats; nothing fits 8 GB."""
    points = Demand(slots=2**20 + 8, positions=2**20 + 8, shapes=frozenset({(1, 1), (1, 7)}))
    hybrid = load_model("qwen3.5-35b-a3b")
    assert fitting_repeats(hybrid, points, 120e9, 2) == 10
    assert 90e9 < bytes_needed(hybrid, layout(hybrid.blocks), 10, points, 2) < 115e9
    short = Demand(slots=2**17, positions=2**17, shapes=frozenset({(1, 1), (1, 7)}))
    assert 2 <= fitting_repeats(load_model("deepseek-v3"), short, 120e9, 2) <= 4
    with pytest.raises(UnsupportedError, match="GB"):
        fitting_repeats(hybrid, points, 8e9, 2)


@pytest.mark.parametrize(
    ("part", "word"),
    [
        (spec.LightningAttention(heads=2, head_dim=16), "lightning"),
        (GQA.model_copy(update={"window": 128}), "attention with window"),
        (MLA.model_copy(update={"output_gate": True}), "mla with output gate"),
        (MOE.model_copy(update={"expert_bias": True}), "moe with expert bias"),
        (MAMBA.model_copy(update={"gated_norm": False}), "mamba2"),
    ],
)
def test_what_it_cannot_build_is_named(part: Any, word: str) -> None:
    with pytest.raises(UnsupportedError, match=word):
        build(part, HIDDEN, PLACE)


def test_skewed_routing_prefers_some_experts() -> None:
    moe = spec.Moe(experts=64, top_k=4, inner=16)
    torch.manual_seed(0)
    even, steep = (skewed_experts(32, moe, skew, DEVICE) for skew in (0.0, 3.0))
    assert all(len(set(row)) == 4 for row in [*even.tolist(), *steep.tolist()])
    assert steep.unique().numel() < even.unique().numel() / 2
    built = build(moe, HIDDEN, PLACE, 3.0)
    state = Phases(stack("plain"), CONTEXT, 2).target.passes[0]
    built.forward(torch.randn(2, HIDDEN, device=DEVICE).to(PLACE.dtype), state)
    first = built.chosen[2].clone()
    built.forward(torch.randn(2, HIDDEN, device=DEVICE).to(PLACE.dtype), state)
    assert isinstance(built, Moe)
    assert torch.equal(first, built.chosen[2])


# --- what it reports -------------------------------------------------------------------------------------------


def measured(points: list[Point], model: spec.Model, **options: Any) -> dict[str, Any]:
    return measure_steps(model, points, DEVICE, 60.0, dtype=PLACE.dtype, phase_budget_s=0.0, **options)


def test_a_document_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies share what they can; phases add up; a model built in part is extrapolated."""
    clock = count(1)

    def once(function: Callable[[], None], *_: Any) -> command.Timed:
        function()
        return command.Timed(float(next(clock)), 0.0, 0.0, 1, again=lambda: None)

    monkeypatch.setattr(command, "timed", once)
    points = [Point(CONTEXT, 2, 1, 16, 4, policy) for policy in ("native", "flag", "ring")]
    model = tiny("periods", (alone(MAMBA, 3), alone(PLAIN_MOE, 3)), (layer(GQA, PLAIN_MOE),))
    seen: list[int] = []
    document = measured(points, model, repeats=2, on_change=lambda d: seen.append(len(d["points"])))
    assert seen == [0, 1, 2, 3]
    assert (document["built"]["repeats"], document["built"]["of"]) == (2, 3)
    assert any("extrapolated" in note for note in document["notes"])
    native, flag, ring = document["points"]
    for point in document["points"]:
        assert set(point["phases"]) == {"base", "draft", "verify", "sample", "extend", "lists"}
        own = [point["phases"][name]["seconds"] for name in ("draft", "verify", "sample", "extend")]
        assert point["step_s"] == pytest.approx(sum(own))
        assert set(point["host"]) == {"base_iteration_s", "base_seam_s", "step_iteration_s", "step_seam_s"}
        assert [len(point["experts"][name]) for name in ("base", "verify", "extend", "draft")] == [2, 2, 1, 1]
        assert all(2 <= touched <= 6 for touches in point["experts"].values() for touched in touches)
    verify = native["phases"]["verify"]
    assert verify["seconds"] == pytest.approx(2 * verify["built_s"] - verify["half_s"])
    assert native["phases"]["verify"] == flag["phases"]["verify"] == ring["phases"]["verify"]
    assert native["phases"]["extend"] == flag["phases"]["extend"] != ring["phases"]["extend"]
    assert native["phases"]["draft"] != flag["phases"]["draft"] == ring["phases"]["draft"]
    json.dumps(document)


def test_a_model_without_a_head_has_a_base_step_and_a_verify() -> None:
    document = measured([Point(CONTEXT, 0), Point(CONTEXT, 1)], MODELS["plain"])
    assert [set(point["phases"]) for point in document["points"]] == [
        {"base"},
        {"base", "verify", "sample", "lists"},
    ]
    assert any("no MTP head" in note for note in document["notes"])


def test_no_time_left_and_errors_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    document = measure_steps(MODELS["plain"], [Point(CONTEXT, 1)], DEVICE, 0.0, dtype=PLACE.dtype)
    assert document["points"][0]["skipped"] == "time budget"

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory\nmore")

    monkeypatch.setattr(command.Bench, "measure", fail)
    document = measured([Point(CONTEXT, 1)], MODELS["plain"])
    assert document["points"][0]["error"] == "RuntimeError: out of memory"
    assert "out of memory" in command.row(document["points"][0])


def test_the_command_writes_and_prints(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "steps.json"
    monkeypatch.setattr(command, "load_model", lambda *_: MODELS["dense"])
    monkeypatch.setattr(command, "PHASE_BUDGET_S", 0.0)
    words = ["--model", "dense", "--contexts", "64", "--depths", "0,1", "--policies", "ring", "--out", str(out)]
    assert command.main([*words, "--window", "16", "--sink", "4"]) == 0
    document = json.loads(out.read_text())
    assert document["schema"] == "wmtp-steps/1"
    assert document["environment"]["torch"] == torch.__version__
    assert [(p["context"], p["depth"]) for p in document["points"]] == [(64, 0), (64, 1)]
    assert len(capsys.readouterr().out.splitlines()) == 2 + 2
    assert list(tmp_path.iterdir()) == [out]
    assert command.main([*words, "--policies", "all"]) == 2
    assert "--policies" in capsys.readouterr().err
