"""The shipped systems: every file loads, says where its values come from, survives a rewriting, and has a price."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

import wmtp_sim
from wmtp_sim.catalog.systems import SCHEMA, load_system, shipped_systems, standard_systems
from wmtp_sim.errors import InputError
from wmtp_sim.spec.system import System

FOLDER = Path(wmtp_sim.__file__).parent / "data" / "systems"
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))

#: What costs time or memory: values of these parts need a source, or a sentence of what was assumed.
PRICED = ("network", "cache", "proposal", "verify", "experts", "generation", "upkeep")
#: Windows by the engines' own flags, whose title and source say it all.
FLAGS = ("flag", "ring")
#: Systems whose output is not the target's, by their own publications.
LOSSY = {"clp", "medusa", "moe-spec", "relaxed-sd", "via-sd"}

_QWEN: dict[str, Any] = {"model": "qwen3-8b"}
_MTP: dict[str, Any] = {"model": "qwen3.5-35b-a3b"}
_EAGLE: dict[str, Any] = {"model": "llama-3.1-8b", "drafter": "eagle"}
_SMALL: dict[str, Any] = {"model": "llama-3.1-8b", "drafter": "llama-3.2-1b"}
_EXPERTS: dict[str, Any] = {"model": "qwen3-30b-a3b", "drafter": "eagle"}

#: A deployment for each system; those that bring their drafter or need none are priced on a dense target.
DEPLOYMENTS = {
    **dict.fromkeys(("native", "flag", "ring"), _MTP),
    **dict.fromkeys(("eagle-3.1", "via-sd"), _EAGLE),
    **dict.fromkeys(("memory-slots", "sequoia", "specexec", "simsd"), _SMALL),
    **dict.fromkeys(("ecospec", "moe-spec"), _EXPERTS),
    **dict.fromkeys(("relaxed-sd", "depthweave-kv"), _MTP),
}


def document(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text())


# --- what a file says ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_named_as_its_system(name: str) -> None:
    system = load_system(name)
    assert system.name == name
    assert load_system(str(FOLDER / f"{name}.toml")) == system
    assert system.title
    assert not system.title.endswith(".")
    assert "\n" not in system.title
    assert system.source


def test_systems_are_told_apart() -> None:
    found = list(shipped_systems().values())
    assert sorted(each.name for each in found) == NAMES
    for values in (
        [each.order for each in found],
        [each.title for each in found],
        [each.look.phrase for each in found],
        [each.look.colours[0] for each in found],
        [each.look.colours[1] for each in found],
    ):
        assert len(set(values)) == len(values)


@pytest.mark.parametrize("name", NAMES)
def test_colours_stand_out_from_their_ground(name: str) -> None:
    """Lines need a contrast of 3 (WCAG 2.2, 1.4.11), on white and on a dark grey."""
    light, dark = (luminance(colour) for colour in load_system(name).look.colours)
    assert 1.05 / (light + 0.05) >= 3
    assert (dark + 0.05) / (luminance("#1a1a1a") + 0.05) >= 3


def luminance(colour: str) -> float:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_heads_of_every_engine_have_a_standard_system() -> None:
    by_kind = {"block": ["dflash", "dflash-window"], "parallel": ["p-eagle"], "heads": ["medusa"], "self": []}
    for kind, names in by_kind.items():
        assert [each.name for each in standard_systems(kind)] == names  # type: ignore[arg-type]
    for kind in ("mtp", "eagle", "model"):
        assert [each.name for each in standard_systems(kind)] == ["native", "flag", "ring"]  # type: ignore[arg-type]


# --- where its values come from --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_sources_are_of_stated_fields(name: str) -> None:
    system, values = load_system(name), document(name)
    for path, source in system.sources.items():
        assert re.match(r"(stated|code): \S", source), path
        found: Any = system
        for part in path.split("."):
            assert isinstance(found, BaseModel), f"{path} goes beyond a value"
            assert part in type(found).model_fields, path
            found = getattr(found, part)
            values = values.get(part, {})
        values = document(name)


@pytest.mark.parametrize("name", [each for each in NAMES if each not in FLAGS])
def test_values_are_published_or_said_to_be_assumed(name: str) -> None:
    system = load_system(name)
    for path, value in stated_values(system):
        sourced = any(path == known or path.startswith(f"{known}.") for known in system.sources)
        assert sourced or said(value, system.assumed), f"{path} = {value!r} has no source, and is not assumed"


@pytest.mark.parametrize("name", NAMES)
def test_assumptions_are_plain_sentences(name: str) -> None:
    for line in load_system(name).assumed:
        assert line == line.strip()
        assert not line.endswith(".")
        assert len(line) <= 300


def stated_values(system: System) -> Iterator[tuple[str, Any]]:
    """Paths and values of what costs something and is not the schema's default; lists are walked by place."""
    values = system.model_dump(exclude_defaults=True, include=set(PRICED))
    for entry in values.get("upkeep", ()):
        entry.pop("name")
    yield from leaves(values)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list | tuple) and value:
        inside = dict(enumerate(value)).items()
    else:
        yield path, value
        return
    for part, each in inside:
        yield from leaves(each, f"{path}.{part}" if path else str(part))


def said(value: Any, sentences: tuple[str, ...]) -> bool:
    """Whether a sentence has a number (by itself, not within another), or a word."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return any(str(value) in line for line in sentences)
    numbers = {float(each.replace(",", "")) for line in sentences for each in NUMBER.findall(line)}
    return float(value) in numbers


#: A number as people write it: "1,024", "0.25", "25e9"; not the digits of a name such as "EAGLE-3" or "L40".
NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?:e\d+)?(?![\w-])")


def test_numbers_are_found_whole() -> None:
    line = ("a sink of 64, 1,024 tokens, 0.25 of them at 25e9 bytes on an L40 under EAGLE-3 in 4-bit",)
    assert all(said(value, line) for value in (64, 1024, 0.25, 25e9))
    assert not any(said(value, line) for value in (6, 24, 1, 25, 40, 3, 4, 0.5))


# --- a file rewritten, and one mistyped ------------------------------------------------------------------------


def toml(value: Any) -> str:
    """A value as inline TOML; JSON's strings are TOML's."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(each) for each in value) + "]"
    if isinstance(value, str | bool):
        return json.dumps(value)
    return repr(value)


def rewritten(values: dict[str, Any], path: Path) -> Path:
    path.write_text("".join(f"{json.dumps(name)} = {toml(each)}\n" for name, each in values.items()))
    return path


@pytest.mark.parametrize("name", NAMES)
def test_a_file_survives_a_rewriting(name: str, tmp_path: Path) -> None:
    system = load_system(name)
    values = {"schema": SCHEMA, **system.model_dump(exclude_defaults=True)}
    assert load_system(str(rewritten(values, tmp_path / "again.toml"))) == system


@pytest.mark.parametrize(
    ("name", "part", "typed", "path"),
    [
        ("triforce", ("cache",), "tokenz", "cache.tokenz"),
        ("triforce", ("proposal", "inner", "network"), "layer", "proposal.inner.network.layer"),
        ("specexec", ("generation", "offload"), "weight", "generation.offload.weight"),
        ("dflash", (), "standart", "standart"),
        ("memory-slots", ("upkeep", 0), "row", "upkeep.0.row"),
    ],
)
def test_an_unknown_field_is_refused_by_its_path(
    name: str, part: tuple[str | int, ...], typed: str, path: str, tmp_path: Path
) -> None:
    values = document(name)
    inside: Any = values
    for step in part:
        inside = inside[step]
    inside[typed] = 1
    file = rewritten(values, tmp_path / "typo.toml")
    with pytest.raises(InputError) as caught:
        load_system(str(file))
    assert caught.value.field == f"{file}: {path}"
    assert "not a known field" in caught.value.problem


# --- its price -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_system_has_a_price(name: str) -> None:
    asked = DEPLOYMENTS.get(name, _QWEN)
    answer = wmtp_sim.estimate(**asked, gpu="h200", context=32_768, system=name, alpha=0.7, overlap=0.3)
    assert list(answer.policies) == [name]
    found = answer.policies[name]
    assert np.isfinite(found.cost.step_s)
    assert found.cost.low_s <= found.cost.step_s <= found.cost.high_s
    assert found.cost.step_s > found.cost.bound_s > 0
    assert found.accept_length is not None
    assert 1 < found.accept_length <= found.depth + 1
    held, base = answer.memory[name], answer.memory["base"]
    assert np.isfinite(held.total_bytes)
    assert held.total_bytes >= base.total_bytes > 0
    assert held.draft_kv_bytes >= 0


@pytest.mark.parametrize("name", NAMES)
def test_only_exact_rules_are_lossless(name: str) -> None:
    system = load_system(name)
    exact = system.verify.rule == "exact" and system.experts.budget is None
    assert system.lossless == exact == (name not in LOSSY)


@pytest.mark.parametrize("name", ["kvshot", "longspec", "h-spec", "quantspec", "swift", "medusa", "clp"])
def test_caches_in_place_hold_nothing(name: str) -> None:
    answer = wmtp_sim.estimate(**DEPLOYMENTS.get(name, _QWEN), gpu="h200", context=32_768, system=name)
    assert answer.memory[name].draft_kv_bytes == 0


def test_drafters_cost_what_they_are_said_to_cost() -> None:
    """What publications say of the sizes, at the context and target where they say it."""
    dflash = wmtp_sim.estimate("qwen3-8b", "h200", context=32_768, system=["dflash", "dels-spec"])
    kv = dflash.memory["dflash"]
    assert kv.draft_kv_bytes == 32_768 * 20_480  # arXiv 2602.06036: 5 layers of 8 heads of 128, twice, in bf16
    assert kv.kv_bytes == 32_768 * 147_456
    steps = {name: float(each.cost.step_s) for name, each in dflash.policies.items()}
    assert steps["dflash"] < steps["dels-spec"]

    slots = wmtp_sim.estimate(**_SMALL, gpu="h200", context=32_768, system=["native", "memory-slots"])
    shrunk = slots.memory["memory-slots"].draft_kv_bytes / slots.memory["native"].draft_kv_bytes
    assert shrunk < 0.3  # arXiv 2608.30252: more than 70 % less
