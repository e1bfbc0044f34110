"""The choice against an exhaustive search over single points, and what must hold of it whatever the numbers are."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import wmtp_sim
from wmtp_sim.api import recommend
from wmtp_sim.decide.choice import INDIFFERENT, plainest
from wmtp_sim.decide.depth_table import MARGIN
from wmtp_sim.decide.options import Option
from wmtp_sim.decide.recommend import UNIT, Recommendation
from wmtp_sim.decide.thresholds import IntArray, Walk, between, narrowed
from wmtp_sim.errors import InputError
from wmtp_sim.spec.mix import Mix

BoolArray = NDArray[np.bool_]
MODEL, GPU = "qwen3.5-35b-a3b", "h200"
DEPTHS = (1, 2, 4)


@cache
def point(context: int, batch: int, depth: int, window: int, sink: int, engine: str) -> wmtp_sim.Estimate:
    return wmtp_sim.estimate(
        MODEL, GPU, context=context, batch=batch, depth=depth, window=window, sink=sink, engine=engine
    )


def length(survival: list[float], depth: int) -> float:
    return 1.0 + sum(survival[:depth])


def exhaustive(
    mix: dict[tuple[int, int], float],
    survival: list[float],
    windows: list[tuple[int, int]],
    engine: str,
    what_if: bool,
    slo_s: float,
    certain: bool = False,
) -> dict[Option, tuple[float, bool]]:
    """Tokens/s and whether it may be chosen, of each option in order of plainness: one estimate per option and cell."""
    policies = {"sglang": ["native", "flag"], "vllm": ["native"], "ideal": ["native", "flag", "ring"]}[engine]
    if what_if:
        policies = ["native", "flag", "ring"]
    options = [Option()]
    for policy in policies:
        pairs = [(None, None)] if policy == "native" else sorted(windows, reverse=True)
        options += [Option(policy, depth, *pair) for depth in DEPTHS for pair in pairs]  # type: ignore[arg-type]
    found = {}
    for option in options:
        seconds, possible = 0.0, True
        for (context, batch), share in mix.items():
            window, sink = option.window or windows[0][0], option.sink if option.sink is not None else windows[0][1]
            answer = point(context, batch, option.depth or 1, window, sink, engine)
            cost = answer.base if option.policy is None else answer.policies[option.policy].cost
            each = float(cost.step_s) / length(survival, option.depth)
            held = float(cost.high_s) / length(survival, option.depth) if certain else each
            memory = answer.memory[option.policy or "base"]
            possible &= bool(memory.fits) and held <= slo_s
            seconds += share * each / batch
        possible &= option.window is None or option.window >= option.depth + 1
        found[option] = (1.0 / seconds, possible)
    return found


@pytest.mark.parametrize("engine", ["sglang", "vllm", "ideal"])
@pytest.mark.parametrize(
    ("contexts", "batches"),
    [({2**20: 1.0}, {1: 1.0}), ({8192: 0.5, 65536: 0.3, 262144: 0.2}, {1: 0.6, 4: 0.4}), ({32768: 1.0}, {16: 1.0})],
)
@pytest.mark.parametrize("survival", [[0.9, 0.8, 0.7, 0.6], [0.5, 0.2, 0.1, 0.05], [0.05, 0.0, 0.0, 0.0]])
@pytest.mark.parametrize(("what_if", "slo_s"), [(False, float("inf")), (True, float("inf")), (False, 0.0045)])
def test_an_exhaustive_search_agrees(
    engine: str,
    contexts: dict[int, float],
    batches: dict[int, float],
    survival: list[float],
    what_if: bool,
    slo_s: float,
) -> None:
    windows = [(256, 64), (4032, 64)]
    found = recommend(
        MODEL,
        GPU,
        context=list(contexts),
        context_shares=list(contexts.values()),
        batch=list(batches),
        batch_shares=list(batches.values()),
        depth=DEPTHS,
        window=[256, 4032],
        survival=survival,
        slo_itl_s=None if slo_s == float("inf") else slo_s,
        what_if=what_if,
        engine=engine,
    )
    cells = itertools.product(contexts.items(), batches.items())
    mix = {(c, b): of_context * of_batch for (c, of_context), (b, of_batch) in cells}
    expected = exhaustive(mix, survival, windows, engine, what_if, slo_s)
    possible = {option: rate for option, (rate, can) in expected.items() if can}
    if not possible:
        assert found.choice is None
        return
    most = max(possible.values())
    assert found.choice == next(option for option, rate in possible.items() if rate >= most * (1 - INDIFFERENT))
    assert found.judged is not None
    for option, (rate, can) in expected.items():
        place = found.space.options.index(option)
        assert found.judged.rate[place] == pytest.approx(rate, rel=1e-9)
        assert found.judged.possible[place] == can


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("batches", [{1: 1.0}, {1: 0.7, 4: 0.3}])
@pytest.mark.parametrize("slo_ms", [3.5, 4.2, 5.5, 8, 14])
def test_a_certain_target_is_met_at_the_slow_end_of_every_step(
    engine: str, batches: dict[int, float], slo_ms: float
) -> None:
    """Against one estimate per option and cell, whose `high_s` is the slow end."""
    contexts, survival, slo_s = {8192: 0.5, 262144: 0.5}, [0.8, 0.6, 0.4, 0.3], slo_ms / 1e3
    expected, certain = (
        recommend(
            MODEL,
            GPU,
            context=list(contexts),
            batch=list(batches),
            batch_shares=list(batches.values()),
            depth=DEPTHS,
            survival=survival,
            slo_itl_s=slo_s,
            slo_certain=wanted,
            engine=engine,
        )
        for wanted in (False, True)
    )
    cells = itertools.product(contexts.items(), batches.items())
    mix = {(c, b): of_context * of_batch for (c, of_context), (b, of_batch) in cells}
    found = exhaustive(mix, survival, [(4032, 64)], engine, False, slo_s, certain=True)
    possible = {option: rate for option, (rate, can) in found.items() if can}
    most = max(possible.values(), default=0.0)
    best = next((option for option, rate in possible.items() if rate >= most * (1 - INDIFFERENT)), None)
    assert certain.choice == best
    assert (None if expected.certain is None else expected.space.options[expected.certain]) == best
    assert certain.judged is not None
    assert [o for o, can in zip(certain.space.options, certain.judged.possible, strict=True) if can] == list(possible)
    if certain.place is not None:
        assert expected.judged is not None
        assert expected.place is not None
        assert certain.judged.slow_latency_s[certain.place] <= slo_s
        assert expected.judged.rate[expected.place] >= most * (1 - INDIFFERENT)


def asked(**changes: Any) -> Recommendation:
    usual: dict[str, Any] = {"context": 2**18, "batch": 2, "depth": range(1, 7), "alpha": 0.7}
    return recommend(MODEL, GPU, **(usual | changes))


@settings(max_examples=25, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_a_better_acceptance_never_lowers_tokens_per_second(one: float, other: float, slo: bool) -> None:
    low, high = (asked(alpha=alpha, slo_itl_s=0.005 if slo else None) for alpha in sorted((one, other)))
    assert low.judged is not None
    assert high.judged is not None
    assert (high.judged.rate >= low.judged.rate * (1 - 1e-12)).all()
    if low.place is not None:
        assert high.place is not None
        assert high.judged.rate[high.place] >= low.judged.rate[low.place] * (1 - INDIFFERENT)


def test_off_is_chosen_when_every_depth_loses() -> None:
    found = asked(alpha=0.0)
    assert found.choice == Option()
    assert found.judged is not None
    assert (found.judged.rate[1:] < found.judged.rate[0]).all()
    assert {each.side for each in found.thresholds if each.axis == "acceptance"} == set()  # a rate of 0 scales to 0


def test_a_target_that_nothing_meets_has_no_choice() -> None:
    found = asked(slo_itl_s=1e-6)
    assert found.choice is None
    assert found.nearest_to_target is not None
    assert found.judged is not None
    assert not found.judged.possible.any()
    with pytest.raises(ValueError, match="nothing was chosen"):
        found.over(0)


def test_a_target_that_more_acceptance_would_meet_says_from_where() -> None:
    easy = asked()
    assert easy.judged is not None
    best = float(easy.judged.latency_s[easy.judged.possible].min())
    found = asked(slo_itl_s=best * 0.95)
    assert found.choice is None
    up = [each for each in found.thresholds if each.axis == "acceptance" and each.side == "above"]
    assert len(up) == 1
    assert asked(alpha=0.7 * up[0].at, slo_itl_s=best * 0.95).choice == up[0].becomes
    assert asked(alpha=0.7 * (up[0].at - 2 / UNIT), slo_itl_s=best * 0.95).choice is None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"slo_itl_s": 0.008, "slo_certain": True},
        {"context": [8192, 32768, 2**17], "context_shares": [5, 3, 2], "batch": [1, 4, 16]},
        {"context": 32768, "batch": [2, 8], "alpha": 0.5, "slo_itl_s": 0.02},
        {"alpha": None, "survival": [0.8, 0.6, 0.3, 0.2, 0.1, 0.05]},
        {"alpha": 0.05},
        {"engine": "vllm", "alpha": 0.4},
        {"slo_itl_s": 0.006},
    ],
)
def test_thresholds_flip_the_choice_and_their_neighbours_do_not(changes: dict[str, Any]) -> None:
    found = asked(**changes)
    assert found.mix is not None
    assert found.thresholds
    kwargs = {"context": found.mix.contexts, "batch": found.mix.batches} | {
        key: value for key, value in changes.items() if key not in ("context", "batch")
    }
    for each in found.thresholds:
        back = -1 if each.side == "above" else 1
        at, near = each.at, each.at + back
        if each.axis == "acceptance":
            near = each.at + back / UNIT
            if changes.get("survival") is not None:
                survival = np.array(changes["survival"])
                powers = np.arange(1, survival.size + 1)
                there, beside = ({"survival": survival * factor**powers} for factor in (at, near))
                if (np.concatenate([there["survival"], beside["survival"]]) > 1).any() or each.side == "above":
                    continue  # conditional rates end at 1, which a power does not
            else:
                there, beside = ({"alpha": min(changes.get("alpha", 0.7) * factor, 1.0)} for factor in (at, near))
            there, beside = {**changes, **there}, {**changes, **beside}
        elif each.axis == "context":
            there, beside = ({**kwargs, "context": found.mix.contexts_up_to(value)} for value in (at, near))
        else:
            there, beside = ({**kwargs, "batch": found.mix.batches_up_to(value)} for value in (at, near))
            if np.unique(there["batch"]).size < found.mix.batches.size:
                continue
            if np.unique(beside["batch"]).size < found.mix.batches.size:
                continue
        assert asked(**there).choice == each.becomes
        assert asked(**beside).choice != each.becomes
        if not each.stops:
            assert asked(**beside).choice == found.choice


def grid_around(start: int, lowest: int, highest: int, count: int) -> IntArray:
    return np.unique(np.concatenate([between(start, lowest, count), between(start, highest, count)]))


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6), st.integers(2, 70))
def test_a_single_flip_is_found_exactly(start: int, end: int, flip: int, width: int) -> None:
    lowest, highest = sorted((start, end))
    walk = Walk.along(lambda at: (at >= flip).astype(int), grid_around(start, lowest, highest, width), start)
    if lowest < flip <= highest:
        below, above = (lowest, flip - 1), (flip, highest)
        assert walk.standing == [above if start >= flip else below]
        assert walk.nearest("below" if start >= flip else "above") == (flip - 1 if start >= flip else flip)
        assert walk.off == ({"below": flip - 1} if start >= flip else {})
    else:
        assert (walk.standing, walk.flips) == ([(lowest, highest)], [])


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=80), st.data())
def test_where_all_is_looked_at_every_interval_is_found(chosen: list[int], data: st.DataObject) -> None:
    """Any sequence of choices, with what changes and changes back."""
    start = data.draw(st.integers(1, len(chosen)))
    walk = Walk.along(lambda at: np.array(chosen)[at - 1], grid_around(start, 1, len(chosen), 100), start)
    now = chosen[start - 1]
    inside = [at for low, high in walk.standing for at in range(low, high + 1)]
    assert inside == [at for at, each in enumerate(chosen, 1) if each == now]
    ups = [at for at in range(start, len(chosen) + 1) if chosen[at - 1] != now]
    downs = [at for at in range(1, start) if chosen[at - 1] != now]
    assert walk.nearest("above") == (min(ups) if ups else None)
    assert walk.nearest("below") == (max(downs) if downs else None)
    offs = [at for at, each in enumerate(chosen, 1) if each == 0] if now > 0 else []
    assert walk.off.get("above") == min((at for at in offs if at > start), default=None)
    assert walk.off.get("below") == max((at for at in offs if at < start), default=None)


@given(st.integers(0, 2**60), st.integers(0, 2**60), st.integers(0, 2**60))
def test_narrowing_is_exact_where_floats_are_not(near: int, far: int, flip: int) -> None:
    """Factors on the rates are whole numbers beyond 2**53."""
    low, high = sorted((near, far))
    if low <= flip < high:
        ends = np.array([near]), np.array([far])
        found = narrowed(lambda at: (at > flip)[:, np.newaxis], *ends, np.array([0]))
        assert found.tolist() == [flip + 1 if far > near else flip]


@pytest.mark.parametrize(
    "changes",
    [
        {"context": 32768, "batch": 1, "alpha": 0.8, "depth": range(1, 9)},
        {"context": [8192, 2**17], "batch": [1, 8]},
        {"engine": "vllm", "alpha": 0.45},
        {"slo_itl_s": 0.006},
    ],
)
def test_the_choice_stands_within_its_intervals_and_nowhere_else(changes: dict[str, Any]) -> None:
    """Every batch, and many contexts and factors, apart from what may change and change back within a gap."""
    found = asked(**changes)
    assert found.judged is not None
    now = int(found.judged.chosen)
    scales = {"acceptance": UNIT, "context": 1, "batch": 1}
    for each in found.standing:
        scale = scales[each.axis]
        low, high = round(each.lowest * scale), round(each.highest * scale)
        if each.axis == "batch":
            at = np.arange(low, high + 1)
            assert each.gap == 0.0 or len(changes["batch"]) > 1
        else:
            spread = np.geomspace if each.axis == "context" else np.linspace
            ends = [round(end * scale) for pair in each.intervals for end in pair]
            beside = [end + step for end in ends for step in (-1, 0, 1)]
            at = np.unique(np.clip([*np.rint(spread(low, high, 700)), *beside], low, high).astype(np.int64))
        stands = np.concatenate([found.judged_at(each.axis, part).chosen for part in np.array_split(at, 8)]) == now
        inside = np.any([(at >= round(a * scale)) & (at <= round(b * scale)) for a, b in each.intervals], axis=0)
        wrong = at[stands != inside]
        assert wrong.size == 0 or (each.axis != "batch" and _within_a_gap(wrong, stands, at, each.gap, scale))
        assert each.intervals == tuple(sorted(each.intervals))
        assert any(a <= found.stated(each.axis) <= b for a, b in each.intervals)


def _within_a_gap(wrong: IntArray, stands: BoolArray, at: IntArray, gap: float, scale: int) -> bool:
    """Whether numbers that were missed lie in runs no longer than a gap."""
    for number in wrong:
        place = int(np.searchsorted(at, number))
        run = np.flatnonzero(np.concatenate([[True], stands[1:] != stands[:-1], [True]]))
        first, last = run[run <= place].max(), run[run > place].min() - 1
        if at[last] - at[first] > gap * (at[last] if scale == 1 else scale):
            return False
    return True


def test_the_ends_of_every_interval_are_those_of_recommendations_made_there() -> None:
    """Those of a choice that comes back among them."""
    found = asked(context=32768, batch=1, alpha=0.8, depth=range(1, 9))
    (batches,) = (each for each in found.standing if each.axis == "batch")
    for low, high in batches.intervals:
        assert {asked(context=32768, batch=at, alpha=0.8, depth=range(1, 9)).choice for at in (low, high)} == {
            found.choice
        }
        for beside in (low - 1, high + 1):
            if beside:
                assert asked(context=32768, batch=beside, alpha=0.8, depth=range(1, 9)).choice != found.choice


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8), st.data())
def test_the_plainest_is_within_nothing_of_the_best_and_none_before_it_is(
    rates: list[float], data: st.DataObject
) -> None:
    possible = data.draw(st.lists(st.booleans(), min_size=len(rates), max_size=len(rates)))
    place = int(plainest(rates, possible))
    among = [rate for rate, can in zip(rates, possible, strict=True) if can]
    if not among:
        assert place == -1
        return
    good = max(among) * (1 - INDIFFERENT)
    assert possible[place]
    assert rates[place] >= good
    assert not any(can and rate >= good for rate, can in zip(rates[:place], possible, strict=False))


# --- intervals ----------------------------------------------------------------------------------------------------


def test_an_option_differs_from_itself_by_nothing() -> None:
    found = asked()
    assert found.place is not None
    same = found.over(found.place)
    assert (same.low, same.expected, same.high) == (0.0, 0.0, 0.0)
    assert not same.sure


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_difference_is_that_of_the_rates_and_lies_within_its_interval(engine: str) -> None:
    found = asked(context=[8192, 2**18], batch=[1, 8], engine=engine)
    assert found.judged is not None
    assert found.place is not None
    for other in np.flatnonzero(found.judged.possible):
        over = found.over(int(other))
        assert over.expected == pytest.approx(found.judged.rate[found.place] / found.judged.rate[other] - 1, abs=1e-9)
        assert over.low <= over.expected <= over.high


def test_common_errors_leave_a_difference_narrower_than_the_steps_own_ranges() -> None:
    found = asked()
    assert found.place is not None
    assert found.choice is not None
    assert found.choice.policy is not None
    answer = point(2**18, 2, found.choice.depth, 4032, 64, "sglang")
    cost = answer.policies[found.choice.policy].cost
    apart = float(answer.base.high_s / cost.low_s - answer.base.low_s / cost.high_s) * found.lengths[found.place]
    over = found.over(0)
    assert over.high - over.low < apart


# --- needs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("need", [1.0, 1.2, 3.0])
def test_the_needed_accept_length_gives_the_speedup(need: float) -> None:
    found = asked(context=[8192, 2**20], batch=[1, 8], need=need)
    for place, option in enumerate(found.space.options):
        if option.policy is None:
            continue
        for c, b in np.ndindex(2, 2):
            answer = point(int(found.asked.contexts[c]), int(found.asked.batches[b]), option.depth, 4032, 64, "sglang")
            result = answer.policies[option.policy]
            assert found.needed[place, c, b] / result.break_even_accept_length == pytest.approx(need)
            assert found.unwinnable[place, c, b] == (result.max_speedup < need)


def test_the_acceptance_that_the_mix_needs_breaks_even_over_it() -> None:
    found = asked(context=[8192, 2**18], context_shares=[1, 3], batch=[1, 8])
    assert found.needed_on_mix is not None
    for place, option in enumerate(found.space.options):
        needed = float(found.needed_on_mix[place])
        if option.policy == "native" and needed < option.depth + 1:
            again = asked(
                context=[8192, 2**18],
                context_shares=[1, 3],
                batch=[1, 8],
                alpha=None,
                accept_length=needed,
                at_depth=option.depth,
            )
            assert again.judged is not None
            assert again.judged.rate[place] == pytest.approx(again.judged.rate[0], rel=1e-9)


# --- one accept length --------------------------------------------------------------------------------------------


def test_an_accept_length_is_carried_over_by_one_rate_and_says_so() -> None:
    stated = asked(alpha=0.7)
    assert stated.lengths is not None
    place = stated.space.options.index(Option("native", 3))
    found = asked(alpha=None, accept_length=float(stated.lengths[place]), at_depth=3)
    assert found.assumed
    assert not stated.assumed
    np.testing.assert_allclose(found.lengths, stated.lengths, rtol=1e-12)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"alpha": None, "accept_length": 2.5}, "--accept-length: holds at the depth it was measured at"),
        ({"alpha": None, "accept_length": 5.0, "at_depth": 2}, "--accept-length: 5.0 exceeds 3"),
        ({"at_depth": 3}, "--at: names the depth of an accept length"),
        ({"alpha": None, "windowed_accept_length": 2.0, "at_depth": 3}, "--windowed-accept-length: says nothing"),
        ({"windowed_accept_length": 9.0, "at_depth": 3}, "--windowed-accept-length: 9.0 exceeds 4"),
        ({"alpha": None, "survival": [0.9, 0.8]}, "--survival: covers depth 2, not depth 6"),
        ({"depth": 0}, "--depth: 0 drafts nothing"),
        ({"slo_itl_s": 0.0}, "--slo-itl-ms: 0 is not a number above 0"),
        ({"slo_certain": True}, "--slo-certain: is given without a target"),
        ({"need": float("nan")}, "--need: nan is not"),
        ({"context": [8192, 8192]}, "--context: 8192 is given twice"),
        ({"context": [8192, 4096], "context_shares": [1, 0]}, "--context: 0 is not a share"),
        ({"context": [8192, 4096], "context_shares": [1]}, "--context: 1 shares for 2 values"),
        ({"drafter": "none"}, "--drafter"),
    ],
)
def test_refusals(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refused:
        asked(**changes)
    assert words in str(refused.value)


def test_rates_say_how_deep_is_searched() -> None:
    found = asked(depth=None, alpha=None, survival=[0.9, 0.8])
    assert found.space.depths == (1, 2)


# --- memory -------------------------------------------------------------------------------------------------------


def test_cells_that_never_fit_are_left_out_and_nothing_is_chosen_where_none_fits() -> None:
    found = asked(context=[8192, 2**18], batch=[1, 512])
    assert found.mix is not None
    assert found.mix.shares.sum() == pytest.approx(1)
    assert found.mix.shares.size < 4
    nothing = asked(context=2**24, batch=64)
    assert nothing.mix is None
    assert nothing.choice is None
    assert nothing.depth_table is None
    assert nothing.thresholds == ()


def test_a_mix_keeps_its_shares_in_order() -> None:
    mix = Mix.of([65536, 8192], [4, 1], [1, 3], [50, 50])
    assert mix.contexts.tolist() == [8192, 65536]
    np.testing.assert_allclose(mix.shares, [[0.375, 0.375], [0.125, 0.125]])
    assert mix.contexts_up_to(65536).tolist() == [8192, 65536]
    assert mix.contexts_up_to([32768, 8]).tolist() == [[4096, 32768], [1, 8]]


# --- depths that change while the engine runs ---------------------------------------------------------------------


MIXED: dict[str, Any] = {"context": [4096, 32768, 2**17], "context_shares": [2, 1, 1], "batch": [1, 4, 16]}


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("alpha", [0.1, 0.4, 0.75])
def test_the_table_is_the_best_of_every_cell_by_single_points(engine: str, alpha: float) -> None:
    found = asked(**MIXED, depth=DEPTHS, engine=engine, alpha=alpha)
    table = found.depth_table
    assert table is not None
    policy = table.draft_kv.policy
    assert policy is not None
    survival = [alpha**j for j in range(1, 5)]
    per_token = np.zeros((1 + len(table.depths[1:]), 3, 3))
    for c, b in np.ndindex(3, 3):
        context, batch = int(table.contexts[c]), int(table.batches[b])
        idle = point(context, batch, 1, 4032, 64, engine)
        times = [float((idle.idle or idle.base).step_s)]
        for depth in table.depths[1:]:
            cost = point(context, batch, depth, 4032, 64, engine).policies[policy].cost
            times.append(float(cost.step_s) / length(survival, depth))
        per_token[:, c, b] = np.array(times) / batch
        assert table.depth[c, b] == table.depths[int(np.argmin(times))]
        assert table.tokens_per_s[c, b] == pytest.approx(batch / min(times), rel=1e-9)
    shares = found.asked.shares
    batch_only = [min((shares[:, b] * per_token[k, :, b]).sum() for k in range(len(per_token))) for b in range(3)]
    assert table.switching == pytest.approx(1 / (shares * per_token.min(axis=0)).sum(), rel=1e-9)
    assert table.batch_only == pytest.approx(1 / sum(batch_only), rel=1e-9)
    assert 0 <= table.batch_only_loss < 1


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.75])
def test_walking_within_a_band_never_switches_twice(engine: str, alpha: float) -> None:
    """Up and down across every edge: after a switch, the way back changes nothing until the other edge of a band."""
    found = asked(**MIXED, engine=engine, alpha=alpha)
    table = found.depth_table
    assert table is not None
    for row in table.rows:
        edges = sorted({end for bands in row.keep.values() for interval in bands for end in interval})
        for edge in edges:
            for start in row.keep:
                walk = [max(edge + offset, 1024) for offset in (0, 1, 2, 1, 0, -1, -2, -1, 0, 1, 2, 1, 0)]
                walk = [min(each, 2**18) for each in walk]
                current, switches = row.next_depth(start, walk[0]), 0
                for context in walk:
                    following = row.next_depth(current, context)
                    switches += following != current
                    current = following
                assert switches <= 1
        current, switches = row.next_depth(0, 1024), []
        contexts = np.unique(np.geomspace(1024, 2**18, 400).astype(int)).tolist()
        for context in [*contexts, *reversed(contexts)]:
            following = row.next_depth(current, context)
            if following != current:
                switches.append((context, current, following))
            current = following
        assert not any(a[0] == b[0] for a, b in itertools.pairwise(switches))


@pytest.mark.parametrize("alpha", [0.3, 0.6])
def test_a_depth_is_kept_exactly_while_nothing_is_better_by_the_margin(alpha: float) -> None:
    found = asked(**MIXED, alpha=alpha)
    table = found.depth_table
    assert table is not None
    policy = table.draft_kv.policy
    assert policy is not None
    survival = [alpha**j for j in range(1, 9)]

    def rates(context: int, batch: int) -> dict[int, float]:
        idle = point(context, batch, 1, 4032, 64, "sglang")
        given = {0: 1 / float((idle.idle or idle.base).step_s)}
        for depth in table.depths[1:]:
            cost = point(context, batch, depth, 4032, 64, "sglang").policies[policy].cost
            given[depth] = length(survival, depth) / float(cost.step_s)
        return given

    row = table.row(4)
    for depth, bands in row.keep.items():
        for low, high in bands:
            for context, kept in ((low, True), (high, True), (low - 1, False), (high + 1, False)):
                if 1024 <= context <= 2**18:
                    given = rates(context, row.batch)
                    assert (given[depth] * (1 + MARGIN) > max(given.values())) == kept
    for depth, bands in row.best.items():
        for low, high in bands:
            assert rates(low, row.batch)[depth] == pytest.approx(max(rates(low, row.batch).values()), rel=1e-12)
            assert rates(high, row.batch)[depth] == pytest.approx(max(rates(high, row.batch).values()), rel=1e-12)


def test_a_batch_between_two_listed_ones_has_the_larger_ones_row() -> None:
    table = asked(**MIXED).depth_table
    assert table is not None
    assert [table.row(batch).batch for batch in (1, 2, 4, 5, 16, 400)] == [1, 4, 4, 16, 16, 16]
