"""Whatever `wmtp recommend` prints passes `wmtp preflight` without errors, or it says why it prints nothing."""

from __future__ import annotations

import pytest

from wmtp_sim.api import recommend
from wmtp_sim.catalog.commands import read_command
from wmtp_sim.catalog.engines import engine_names, load_engine
from wmtp_sim.catalog.flags import vocabulary
from wmtp_sim.cli.launching import launch, of_options, with_formats
from wmtp_sim.decide.choice import windows_reach
from wmtp_sim.errors import InputError
from wmtp_sim.preflight import preflight

#: Heads of grouped queries, of latent attention, with a window of their own, in a hybrid, and of a packed checkpoint.
MODELS = (
    *("qwen3.5-35b-a3b", "deepseek-v3.2", "mimo-v2-flash", "nemotron-3-super-120b-a12b"),
    *("qwen3.5-122b-a10b-nvfp4", "glm-4.5-air"),
)

EIGHT = {
    "--tp": "8",
    "--dp": "1",
    "--draft-tp": None,
    "--kv": None,
    "--draft-kv": None,
    "--dp-attention": False,
    "--expert-parallel": False,
    "--all-to-all": False,
}


def known(engine: str) -> bool:
    """Whether the release's flags are."""
    try:
        return bool(vocabulary(engine))
    except InputError:
        return False


#: Every release with every head on an H200; elsewhere, and among policies that it lacks, a hybrid and a latent head.
ASKED = [(name, model, "h200", False) for name in engine_names() if known(name) for model in MODELS]
ASKED += [(name, MODELS[0], "h200", False) for name in engine_names() if name != "bench" and not known(name)]
ASKED += [
    (name, model, gpu, what_if)
    for name in engine_names()
    if known(name)
    for model in MODELS[:2]
    for gpu, what_if in (("h200", True), ("b200", False), ("mi300x", False))
]


@pytest.mark.parametrize(("engine", "model", "gpu", "what_if"), ASKED)
def test_a_printed_line_walks_into_no_trap(model: str, gpu: str, what_if: bool, engine: str) -> None:
    release = load_engine(engine)
    found = recommend(
        model, gpu, context=2**17, batch=(1, 4), alpha=0.8, depth=(1, 4), tp=8, engine=release, what_if=what_if
    )
    started = with_formats(of_options(model, release, EIGHT), None, None, None, "mtp")
    told, choice = launch(found, started), found.choice
    if choice is None:
        assert (told.line, told.unsaid) == (None, None)
        return
    if told.line is None:
        assert told.unsaid
        assert not known(engine) or choice.policy == "ring" or (choice.policy == "flag" and what_if)
        return
    assert told.unsaid is None
    command = read_command(told.line, release)
    assert (command.line.unknown, command.line.refused) == ([], [])
    stated = command.deployment
    assert (stated.depth, stated.window, stated.sink) == (choice.depth, choice.window, choice.sink)
    assert ("window" in told.line) == (choice.window is not None)
    assert choice.window is None or windows_reach(found.space.deployment.drafter)
    assert stated.max_running is not None
    looked = preflight(command, gpu, batch=stated.max_running)
    assert [trap.id for trap in looked.traps if trap.severity == "error"] == []
    if choice.window is not None:
        honouring = command.known.engine.window_backends
        assert stated.draft_attention_backend in honouring
        assert (stated.draft_attention_backend == "flashinfer") == (gpu != "mi300x")  # which is NVIDIA's


def test_a_window_without_a_backend_stays_an_error_of_a_users_own_command() -> None:
    """The line that is printed adds one; a command that a person wrote without it reads the whole context."""
    release = load_engine("sglang")
    found = recommend("qwen3.5-35b-a3b", "h200", context=2**20, alpha=0.8, engine=release)
    line = launch(found, of_options("qwen3.5-35b-a3b", release, EIGHT | {"--tp": "1"})).line
    assert line is not None
    assert preflight(read_command(line), "h200").passed
    bare = line.replace("--speculative-draft-attention-backend flashinfer ", "")
    assert bare != line
    looked = preflight(read_command(bare), "h200")
    assert [trap.id for trap in looked.traps if trap.severity == "error"] == ["window-inert-backend"]


def test_the_fix_for_an_inert_backend_is_one_that_the_gpu_runs() -> None:
    command = "sglang serve --model Qwen/Qwen3.5-27B --tp 8 --context-length 131072 --speculative-algorithm NEXTN "
    command += "--speculative-num-steps 3 --speculative-draft-window-size 4032"
    fixes = {gpu: {t.id: t.fix for t in preflight(read_command(command), gpu).traps} for gpu in ("h200", "mi300x")}
    assert fixes["h200"]["window-inert-backend"].endswith("flashinfer")
    assert fixes["mi300x"]["window-inert-backend"].endswith("triton")
    for gpu, traps in fixes.items():
        mended = preflight(read_command(f"{command} {traps['window-inert-backend']}"), gpu)
        assert mended.passed
        assert "window-triton-extend" not in {trap.id for trap in mended.traps}


def test_ranks_that_no_flag_gives_a_head_are_said() -> None:
    release = load_engine("sglang")
    found = recommend("qwen3.5-35b-a3b", "h200", context=2**15, alpha=0.8, depth=2, tp=8, draft_tp=1, engine=release)
    told = launch(found, of_options("qwen3.5-35b-a3b", release, EIGHT | {"--draft-tp": "1"}))
    assert (told.line, told.unsaid) == (None, "no flag of sglang 0.5.23 gives such a drafter ranks of its own")


@pytest.mark.parametrize(
    ("engine", "asked", "flags", "says"),
    [
        ("vllm", {"dp": 4}, {"--dp": "4"}, "vllm 0.33.0 would run attention dp 4, not 4 replicas"),
        (
            "vllm",
            {"tp": 2, "expert_parallel": True, "all_to_all": True},
            {"--tp": "2", "--expert-parallel": True, "--all-to-all": True},
            "vllm 0.33.0 would run tp 2, ep, not tp 2, ep by all-to-all",
        ),
    ],
)
def test_a_line_that_would_start_another_layout_is_not_printed(
    engine: str, asked: dict[str, int], flags: dict[str, object], says: str
) -> None:
    release = load_engine(engine)
    found = recommend("qwen3.5-35b-a3b", "h200", context=2**15, batch=8, alpha=0.8, depth=2, engine=release, **asked)
    told = launch(found, of_options("qwen3.5-35b-a3b", release, EIGHT | {"--tp": "1"} | flags))
    assert (told.line, told.unsaid) == (None, says)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(("tp", "dp"), [(1, 4), (2, 1), (2, 4)])
@pytest.mark.parametrize("more", [(), ("--expert-parallel",), ("--expert-parallel", "--all-to-all")])
@pytest.mark.parametrize("joined", [False, True])
def test_a_line_starts_the_layout_that_was_priced(
    engine: str, tp: int, dp: int, more: tuple[str, ...], joined: bool
) -> None:
    """Or there is none."""
    release = load_engine(engine)
    flags = EIGHT | {"--tp": str(tp), "--dp": str(dp), "--dp-attention": joined} | dict.fromkeys(more, True)
    started = of_options("qwen3.5-35b-a3b", release, flags)
    asked = {"context": 2**14, "batch": 8, "alpha": 0.8, "depth": 2, "engine": release}
    if "--all-to-all" in more and started.deployment.ranks == 1:
        with pytest.raises(InputError, match="--all-to-all: sends rows to other ranks, and there are none"):
            recommend("qwen3.5-35b-a3b", "h200", **asked, **started.deployment.layout)
        return
    found = recommend("qwen3.5-35b-a3b", "h200", **asked, **started.deployment.layout)
    told = launch(found, started)
    if told.line is None:
        assert "would run" in str(told.unsaid)
        return
    read = read_command(told.line, release).deployment.layout
    again = recommend("qwen3.5-35b-a3b", "h200", **asked, **read)
    assert again.space.deployment.work.layout == found.space.deployment.work.layout
