"""External drafters: an EAGLE-style head from its config (or assumed), or any small model as a draft model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from wmtp_sim.catalog.drafter_kinds import Reading, layer_fields, reading
from wmtp_sim.catalog.fields import Fields, path_kind, read_json_object
from wmtp_sim.catalog.models import load_model
from wmtp_sim.catalog.toml_files import complaint
from wmtp_sim.errors import InputError
from wmtp_sim.spec.drafter import Drafter, eagle1_drafter, eagle3_drafter, model_drafter, mtp_drafter
from wmtp_sim.spec.model import Attention, Mlp, Model
from wmtp_sim.spec.precision import weight_format

#: Reduced vocabulary of public EAGLE-3 heads (SpecForge configs).
EAGLE_DRAFT_VOCAB = 32_000


def load_drafter(reference: str, target: Model, draft_weights: str | None = None) -> Drafter | None:
    """The drafter that ``--drafter`` names.

    Args:
        reference: ``mtp`` (the target's trained head), ``eagle`` (a head of assumed geometry), ``none``, or a model
            name, ``config.json`` or folder: an EAGLE head or a draft model, as `drafter_kinds.reading` tells.
        target: whose tokens are drafted. Its precision says how a trained head is stored.
        draft_weights: storage format of an external drafter's linear layers, where its checkpoint states none.

    Raises:
        InputError: when the target has no trained head, or the drafter is of a kind that is not priced, cannot serve
            the target, or states its own formats.
    """
    if reference == "none":
        return None
    if reference == "mtp":
        drafter = mtp_drafter(target)
        if drafter is None:
            problem = f"{target.name} has no trained draft head ({target.mtp_note})"
            hint = "give --drafter eagle, --drafter MODEL (a small model), or --depth 0 for the base step alone"
            raise InputError("--drafter", problem, hint)
        return drafter
    if reference == "eagle":
        return _stored(assumed_eagle(target), draft_weights)
    path = _config_path(reference)
    if path is not None:
        fields = Fields(read_json_object(path), path.name)
        read = _HEADS.get(reading(fields, target))
        if read is not None:
            return _stored(read(fields, target), draft_weights)
    draft = load_model(reference, "--drafter")
    if draft.vocab != target.vocab:
        problem = f"{draft.name} has {draft.vocab:,} tokens, {target.name} {target.vocab:,}"
        raise InputError("--drafter", problem, "a draft model must share the target's vocabulary")
    if draft_weights is not None and draft.precision.stated:
        problem = f"{draft_weights!r}, but the checkpoint of {draft.name} states its own formats"
        raise InputError("--draft-weights", problem, "drop the flag")
    return _stored(model_drafter(draft), draft_weights)


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


def eagle3_from_config(config: Fields, target: Model) -> Drafter:
    """An EAGLE-3 head from its own ``config.json``; it may be narrower than its target, and then says whose."""
    layer = layer_fields(config)
    hidden, attention, inner = _layer(layer)
    wide = next((fields for fields in (config, layer) if "target_hidden_size" in fields), None)
    stated = layer if wide is None else wide
    name = "hidden_size" if wide is None else "target_hidden_size"
    _same(stated, name, target.hidden, "a head narrower than its target states target_hidden_size")
    if "vocab_size" in layer:
        _same(layer, "vocab_size", target.vocab)
    vocab = config.size("draft_vocab_size")
    return eagle3_drafter(target, attention, inner, vocab, hidden=hidden, name=f"EAGLE-3 head of {target.name}")


def eagle1_from_config(config: Fields, target: Model) -> Drafter:
    """An EAGLE-1 head from its own ``config.json``."""
    layer = layer_fields(config)
    _, attention, inner = _layer(layer)
    _same(layer, "hidden_size", target.hidden)
    _same(layer, "vocab_size", target.vocab)
    if config.flag("layernorms", default=False):
        raise config.error(
            "layernorms", "true: heads with norms of their own are not priced yet", "give --drafter eagle"
        )
    return eagle1_drafter(target, attention, inner, bias=config.flag("fusion_bias", "bias", default=False))


def _layer(layer: Fields) -> tuple[int, Attention, int]:
    """Width, attention and MLP width of a head's one decoder layer, which has Llama's shape."""
    hidden, heads = layer.size("hidden_size"), layer.size("num_attention_heads")
    if layer.size("num_hidden_layers") != 1:
        raise layer.error("num_hidden_layers", "only one-layer EAGLE heads are known", "expected 1")
    head_dim = layer.size("head_dim", default=hidden // heads)
    kv_heads, inner = layer.size("num_key_value_heads"), layer.size("intermediate_size")
    try:
        attention = Attention(q_heads=heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim)
    except ValidationError as error:
        raise complaint(error, f"{layer.where}: num_attention_heads") from None
    return hidden, attention, inner


def _same(fields: Fields, name: str, expected: int, hint: str = "another target's head?") -> None:
    if (stated := fields.size(name)) != expected:
        raise fields.error(name, f"{stated} differs from the target's {expected}", hint)


def assumed_eagle(target: Model) -> Drafter:
    """An EAGLE-3 head nobody has shown us: the target's own attention geometry and MLP width."""
    full = [m for b in target.blocks for m in b.mixers if isinstance(m, Attention) and m.window is None]
    if not full:
        problem = f"{target.name} has no grouped-query attention whose geometry a head could copy"
        raise InputError("--drafter", problem, "give the EAGLE head's own config.json")
    widths = [c.inner for b in target.blocks for c in b.channels if isinstance(c, Mlp)]
    inner = max(widths, default=4 * target.hidden)
    source = "target" if widths else "4 x hidden"
    plain = Attention(
        q_heads=full[0].q_heads, kv_heads=full[0].kv_heads, head_dim=full[0].head_dim, v_head_dim=full[0].v_head_dim
    )
    note = (
        f"EAGLE-3 head assumed: attention as the target's, MLP {inner} wide ({source}), {EAGLE_DRAFT_VOCAB:,} draft "
        "tokens; give the head's config.json for its own shape"
    )
    return eagle3_drafter(target, plain, inner, EAGLE_DRAFT_VOCAB, note=note)


#: How configs of heads are read; other drafters are models.
_HEADS: dict[Reading, Callable[[Fields, Model], Drafter]] = {
    "eagle1": eagle1_from_config,
    "eagle3": eagle3_from_config,
}
