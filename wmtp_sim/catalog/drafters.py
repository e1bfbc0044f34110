"""External drafters: a draft head from its config (or assumed), or any small model as a draft model."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from wmtp_sim.catalog.drafter_kinds import Reading, reading
from wmtp_sim.catalog.fields import Fields, path_kind, read_json_object
from wmtp_sim.catalog.heads import HEADS
from wmtp_sim.catalog.heads.eagle import assumed_eagle
from wmtp_sim.catalog.models import load_model
from wmtp_sim.catalog.toml_files import complaint
from wmtp_sim.errors import InputError
from wmtp_sim.spec.drafter import Drafter, model_drafter, mtp_drafter
from wmtp_sim.spec.model import Model
from wmtp_sim.spec.precision import weight_format


def load_drafter(reference: str, target: Model, draft_weights: str | None = None) -> Drafter | None:
    """The drafter that ``--drafter`` names.

    Args:
        reference: ``mtp`` (the target's trained head), ``eagle`` (a head of assumed geometry), ``none``, or a model
            name, ``config.json`` or folder: a draft head or a draft model, as `drafter_kinds.reading` tells.
        target: whose tokens are drafted. Its precision says how a trained head is stored.
        draft_weights: storage format of an external drafter's linear layers, where its checkpoint states none.

    Raises:
        InputError: when the target has no trained head, or the drafter is of a kind that is not priced, cannot serve
            the target, or states its own formats.
    """
    if reference == "none":
        return None
    if reference == "mtp":
        return _trained_head(target)
    if reference == "eagle":
        return _stored(assumed_eagle(target), draft_weights)
    path = _config_path(reference)
    if path is None:
        return _model(reference, target, draft_weights, "model")
    fields = Fields(read_json_object(path), path.name)
    told = reading(fields, target)
    if told not in HEADS:
        return _model(reference, target, draft_weights, told)
    try:
        drafter = HEADS[told](fields, target)
    except ValidationError as error:
        raise complaint(error, f"{path.name}: {error.title}") from None
    if draft_weights is None and drafter.kind != "mtp" and "quantization_config" in fields:
        problem = "the formats of a quantised head are not read"
        raise fields.error("quantization_config", problem, "give --draft-weights, such as --draft-weights fp8")
    return _stored(_of_its_target(drafter, fields, target), draft_weights)


def _of_its_target(drafter: Drafter, config: Fields, target: Model) -> Drafter:
    """The drafter with a note where its config names another model than the target as its own."""
    named = str(config.values.get("base_model_name_or_path") or "")
    own = named.rstrip("/").rpartition("/")[2].lower()
    if not own or own.startswith(target.name.lower()) or target.name.lower().startswith(own):
        return drafter
    return drafter.model_copy(update={"note": f"{config.where} was made for {named[:60]}, not for {target.name}"})


def _trained_head(target: Model) -> Drafter:
    drafter = mtp_drafter(target)
    if drafter is None:
        problem = f"{target.name} has no trained draft head ({target.mtp_note})"
        hint = "give --drafter eagle, --drafter MODEL (a small model), or --depth 0 for the base step alone"
        raise InputError("--drafter", problem, hint)
    return drafter


def _model(reference: str, target: Model, draft_weights: str | None, told: Reading) -> Drafter:
    """A model that drafts: one token a pass, or with PARD's masks several."""
    draft = load_model(reference, "--drafter")
    if draft.vocab != target.vocab:
        problem = f"{draft.name} has {draft.vocab:,} tokens, {target.name} {target.vocab:,}"
        raise InputError("--drafter", problem, "a draft model must share the target's vocabulary")
    if draft_weights is not None and draft.precision.stated:
        problem = f"{draft_weights!r}, but the checkpoint of {draft.name} states its own formats"
        raise InputError("--draft-weights", problem, "drop the flag")
    drafter = model_drafter(draft)
    if told == "pard":
        drafter = drafter.model_copy(update={"kind": "parallel"})
    return _stored(drafter, draft_weights)


def _stored(drafter: Drafter, draft_weights: str | None) -> Drafter:
    """The drafter with its linear layers stored as asked for. A head's projections stay as they are."""
    if draft_weights is None:
        return drafter
    formats = drafter.formats.with_linear(weight_format(draft_weights, "--draft-weights").name)
    return drafter.model_copy(update={"formats": formats})


def _config_path(reference: str) -> Path | None:
    path = Path(reference or "no name")
    path = path / "config.json" if path_kind(path) == "folder" else path
    return path if path_kind(path) == "file" else None
