"""Systems by name: the shipped files, or a user's own; and who drafts in them for a target."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from wmtp_sim.catalog.drafters import load_drafter
from wmtp_sim.catalog.fields import shipped
from wmtp_sim.catalog.toml_files import read_spec
from wmtp_sim.errors import InputError
from wmtp_sim.spec.drafter import Drafter, DrafterKind
from wmtp_sim.spec.engine import Engine
from wmtp_sim.spec.model import Model
from wmtp_sim.spec.network import network_drafter, own_drafter, self_drafter
from wmtp_sim.spec.system import Speculation, System

SCHEMA = "wmtp-system/1"
FLAG = "--system"
#: Tokens drafted per step where neither a person, nor a system or its drafter says how many.
USUAL_DEPTH = 3
#: Systems of one answer, at most.
MOST = 12


@cache
def shipped_systems() -> dict[str, System]:
    """Every shipped system by its name, the plainest first."""
    found = [read_spec(path, System, SCHEMA) for path in shipped("systems").glob("*.toml")]
    return {system.name: system for system in sorted(found, key=lambda each: (each.order, each.name))}


def standard_systems(kind: DrafterKind) -> list[System]:
    """The systems that a drafter of a kind is answered for where none is named, the plainest first."""
    return [each for each in shipped_systems().values() if each.standard and kind in each.drafters]


def windows_drafts(engine: Engine) -> bool:
    """Whether a flag of a release windows a trained head: none does so for a cache that gives memory back."""
    known = shipped_systems()
    offered = [known[name] for name in engine.offers if name in known]
    return any(each.window_matters and each.cache.held == "all" and "mtp" in each.drafters for each in offered)


def load_system(reference: str) -> System:
    """A system by its name or its TOML file.

    Raises:
        InputError: an unknown name (with close ones), or a file that is none.
    """
    known = shipped_systems()
    if reference in known:
        return known[reference]
    if reference.endswith(".toml"):
        found = read_spec(Path(reference), System, SCHEMA)
        if found != known.get(found.name, found):
            raise InputError(f"{reference}: name", f"{found.name!r} is a shipped system, and another", "another name")
        return found
    close = difflib.get_close_matches(reference, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    problem = f"unknown system {reference[:60]!r}"
    raise InputError(FLAG, problem, f"{hint}one of {', '.join(known)}, or a system's TOML file")


def speculations(
    references: Iterable[str | System], target: Model, drafter: str | None, draft_weights: str | None, deep: bool
) -> tuple[Speculation, ...]:
    """The systems of an answer, each with who drafts in it for a target; none where nobody drafts.

    Args:
        references: names or files; without any, the standard systems of the drafter.
        target: whose tokens are drafted.
        drafter, draft_weights: as ``--drafter`` and ``--draft-weights`` state them; a system's own drafter, else the
            target's trained head, where none is named.
        deep: whether the deployment states a depth, which then holds for chains and blocks.

    Raises:
        InputError: an unknown system, one named twice, or one that the drafter cannot draft in.
    """
    named = [each if isinstance(each, System) else load_system(each) for each in references]
    if drafter == "none":
        return ()
    if len(named) > MOST:
        raise InputError(FLAG, f"{len(named)} systems", f"at most {MOST} at once")
    if len({each.name for each in named}) < len(named):
        raise InputError(FLAG, "names a system twice", "each once")
    shared = None
    if drafter is not None or not named or any(each.network.of == "drafter" for each in named):
        shared = load_drafter("mtp" if drafter is None else drafter, target, draft_weights)
        assert shared is not None
        named = named or standard_systems(shared.kind)
        if not any(shared.kind in each.drafters for each in named):
            problem = f"{shared.name} cannot draft in {named[0].name}"
            raise InputError("--drafter", problem, "another drafter, or none where the system has its own")
    found = tuple(_speculation(each, target, _drafter(each, target, shared, draft_weights), deep) for each in named)
    if len({each.system.generation for each in found}) > 1:
        raise InputError(FLAG, "these targets do not generate alike", "systems of one kind of target at once")
    return found


def _drafter(system: System, target: Model, shared: Drafter | None, draft_weights: str | None) -> Drafter | None:
    """Who drafts in a system: the deployment's drafter where it can, else the file's own, the target, or nobody."""
    network = system.network
    if network.of == "none":
        return None
    if network.of == "target":
        return self_drafter(network, target)
    if shared is not None and shared.kind in system.drafters:
        return shared
    if network.of == "own":
        return own_drafter(system, target, draft_weights)
    problem = f"{shared.name if shared else 'nobody'} cannot draft in {system.name}"
    raise InputError("--drafter", problem, f"a drafter of {' or '.join(system.drafters)}, or another system")


def _speculation(system: System, target: Model, drafter: Drafter | None, deep: bool) -> Speculation:
    proposal = system.proposal
    trained = drafter.block - 1 if drafter is not None and drafter.block else None
    depth = None if deep or proposal.widths else trained or proposal.depth or USUAL_DEPTH
    inner = None
    if proposal.inner is not None:
        inner = network_drafter(proposal.inner.network, "model", f"inner drafter of {system.name}", target)
    return Speculation(system, drafter, depth, inner)
