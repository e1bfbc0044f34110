"""Quantisation sections of a ``config.json``: which weight groups are stored how.

A section converts linear layers and lists the modules that it leaves alone. A weight group has one format here, so it
is judged by the modules that hold most of its weights (`catalog.module_names`), in every spelling that checkpoints
use: it stays bf16 when the list names them in at least half of its layers, and `Precision.note` says so when only some
are named.

Some shipped configs are copies whose lists were shortened to their first entries; their ``_unverified`` says so. There,
and only there, an entry for one layer, as in ``model.language_model.layers.0.linear_attn*``, stands for all layers.

Router, embedding, norms and lm_head stay bf16 unless a section converts them by name. The MTP head stays bf16 unless
the whole checkpoint is fp8 and no entry names the head: quantisers to 4 bits and to integers leave it alone, while the
parameter totals of DeepSeek-V3 and MiMo-V2-Flash add up only with the block scales of fp8 heads (projection in bf16).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from wmtp_sim.catalog.families.architecture import Architecture
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.catalog.module_names import Modules, NameList, groups_of
from wmtp_sim.spec.model import MtpHead
from wmtp_sim.spec.precision import LINEAR_GROUPS, GroupFormats, Precision, WeightGroup

_Formats = dict[WeightGroup, str]


def read_precision(text: Fields, root: Fields, architecture: Architecture) -> Precision:
    """What the checkpoint says about its own formats; all bf16 and not ``stated`` when it says nothing.

    Args:
        text: the text model's fields.
        root: the whole document; an ``hf_quant_config.json`` may be nested in it under that name.
        architecture: which layers there are, so that exceptions can be counted.

    Raises:
        InputError: an unknown method, algorithm or layout, or a mistyped section, with the field's name.
    """
    section = _section(text, root)
    if section is None:
        return Precision()
    modules = Modules(architecture, one_stands_for_all=_was_shortened(root))
    scheme = _scheme(section, text, modules)
    notes = [scheme.note] if scheme.note else []
    target: _Formats = {}
    for group in modules.groups:
        if (fmt := scheme.formats.get(group)) is None:
            continue
        left, of = modules.named(scheme.ignore, group)
        if left < modules.enough(group):
            target[group] = fmt
        if 0 < left < of and not modules.one_stands_for_all:
            notes.append(f"{left} of {of} {group} layers stay bf16; all are priced as {target.get(group, 'bf16')}.")
    if modules.one_stands_for_all:
        notes.append("The list of exceptions was shortened in this copy: groups it does not name count as converted.")
    return Precision(
        target=GroupFormats.model_validate(target),
        head=GroupFormats.model_validate(_head(scheme, modules, architecture.mtp) if architecture.mtp else {}),
        stated=True,
        kv=_kv(section),
        note=" ".join(notes),
    )


def _section(text: Fields, root: Fields) -> Fields | None:
    for owner in (root, text):
        if "quantization_config" in owner:
            return owner.child("quantization_config")
    if "hf_quant_config" not in root:
        return None
    section = root.child("hf_quant_config")
    return section.child("quantization") if "quantization" in section else section


def _was_shortened(root: Fields) -> bool:
    remarks = root.values.get("_unverified")
    return isinstance(remarks, list) and any("quantization_config" in str(r) and "shortened" in str(r) for r in remarks)


def _kv(section: Fields) -> Literal["bf16", "fp8"]:
    supported = "supported: fp8 (8-bit float), or null for bf16; state the cache's type yourself otherwise"
    if "kv_cache_scheme" in section:
        scheme = section.child("kv_cache_scheme")
        stated = (scheme.size("num_bits"), scheme.text("type"))
        if stated != (8, "float"):
            raise section.error("kv_cache_scheme", f"{stated[0]}-bit {stated[1]!r} is not known", supported)
        return "fp8"
    algorithm = section.text("kv_cache_quant_algo", default="")
    if algorithm.upper() not in ("", "NONE", "FP8"):
        raise section.error("kv_cache_quant_algo", f"{algorithm[:60]!r} is not known", supported)
    return "fp8" if algorithm.upper() == "FP8" else "bf16"


# --- methods: what a section converts ------------------------------------------------------------------------------


def _converted(fmt: str) -> _Formats:
    return dict.fromkeys(LINEAR_GROUPS, fmt)


@dataclass(frozen=True)
class _Scheme:
    """A format for each group that a section converts, its exceptions, and a remark for people."""

    formats: _Formats
    ignore: NameList
    note: str = ""


def _scheme(section: Fields, text: Fields, modules: Modules) -> _Scheme:
    default = "modelopt" if "quant_algo" in section or "kv_cache_quant_algo" in section else ""
    method = section.text("quant_method", default=default)
    if method not in _METHODS:
        problem = f"{method[:60]!r} is not a known quantisation method" if method else "is missing"
        raise section.error("quant_method", problem, f"supported: {', '.join(_METHODS)}")
    return _METHODS[method](section, text, modules)


def _fp8(section: Fields, text: Fields, modules: Modules) -> _Scheme:
    """DeepSeek's and Qwen's fp8: 128x128 blocks, or one scale per tensor. DeepSeek-V4 adds fp4 experts."""
    if "weight_block_size" in section and section.items("weight_block_size", of=int) != [128, 128]:
        shown = section.values["weight_block_size"][:4]
        raise section.error("weight_block_size", f"{shown} is not known", "supported: [128, 128], or null per tensor")
    formats, note = _converted("fp8"), ""
    stated = section if "expert_dtype" in section else text
    expert = stated.text("expert_dtype", default="fp8")
    if expert not in ("fp8", "fp4"):
        raise stated.error("expert_dtype", f"{expert[:60]!r} is not known", "supported: fp4, fp8")
    if expert == "fp4":
        formats["expert"] = "mxfp4-a8"
        note = "Experts are fp4 with a ue8m0 scale per 32, multiplied in fp8; the head's are taken to be stored alike."
    return _Scheme(formats, NameList(section, "modules_to_not_convert", "ignored_layers"), note)


def _mxfp4(section: Fields, text: Fields, modules: Modules) -> _Scheme:
    """gpt-oss: transformers and the engines convert routed experts only, whatever the list leaves open."""
    return _Scheme({"expert": "mxfp4"}, NameList(section, "modules_to_not_convert"))


def _awq(section: Fields, text: Fields, modules: Modules) -> _Scheme:
    fmt = _integer(section, section.size("bits", "w_bit"), _group_size(section, "group_size", "q_group_size"))
    return _Scheme(_converted(fmt), NameList(section, "modules_to_not_convert"))


def _gptq(section: Fields, text: Fields, modules: Modules) -> _Scheme:
    """GPTQ and GPTQModel; ``dynamic`` may except modules (``-:``) but not give them other bits."""
    fmt = _integer(section, section.size("bits"), _group_size(section, "group_size"))
    formats = _converted(fmt)
    if (only := "modules_in_block_to_quantize") in section:
        flat = [name for names in section.items(only, of=list) for name in names]
        listed = NameList(Fields({only: flat}, section.where), only)
        formats = {group: fmt for group in modules.groups if group in formats and modules.named(listed, group)[0]}
    if section.flag("lm_head", default=False):
        formats["lm_head"] = fmt
    excepted = []
    for key in section.child("dynamic").values if "dynamic" in section else ():
        if not key.startswith("-:"):
            raise section.error("dynamic", f"{key[:60]!r} changes a module's bits", "supported: exceptions, '-:...'")
        excepted.append(f"re:{key[2:]}")
    return _Scheme(formats, NameList(section, "modules_to_not_convert", more=excepted))


_STRATEGIES = ("tensor", "channel", "group", "block", "token", "tensor_group")
_PACKINGS = (
    "pack-quantized",
    "mxfp4-pack-quantized",
    "nvfp4-pack-quantized",
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "mixed-precision",
)


def _compressed_tensors(section: Fields, text: Fields, modules: Modules) -> _Scheme:
    """Each of ``config_groups`` converts the modules that its targets name, else those of the class ``Linear``."""
    groups = section.child("config_groups")
    named, by_class = _Formats(), _Formats()
    for name in groups.values:
        group = groups.child(name)
        _known(section, "format", _PACKINGS)
        _known(group, "format", _PACKINGS)
        if "weights" not in group:
            continue
        fmt = _tensor_format(group.child("weights"), activations="input_activations" in group)
        targets = NameList(group, "targets")
        if "Linear" in targets.plain:
            by_class = _converted(fmt) | by_class
        named = {g: fmt for g in modules.groups if modules.named(targets, g)[0] >= modules.enough(g)} | named
    formats = by_class | named
    if not formats and (groups.values or "kv_cache_scheme" not in section):
        raise section.error("config_groups", "no group converts weights of a known module", "supported: Linear, names")
    note = "8-bit integer activations are priced at the bf16 rate." if "int8" in formats.values() else ""
    return _Scheme(formats, NameList(section, "ignore"), note)


def _known(fields: Fields, name: str, supported: Sequence[str]) -> None:
    value = fields.text(name, default=supported[0])
    if value not in supported:
        raise fields.error(name, f"{value[:60]!r} is not known", f"supported: {', '.join(supported)}")


def _tensor_format(weights: Fields, activations: bool) -> str:
    """The format of a compressed-tensors ``weights`` object; ``activations``: whether inputs are converted too."""
    _known(weights, "strategy", _STRATEGIES)
    if weights.text("strategy", default="tensor") in ("group", "tensor_group") and "group_size" not in weights:
        raise weights.error("group_size", "is missing", "weights in groups have a group size")
    bits, kind, size = weights.size("num_bits"), weights.text("type", default="int"), _group_size(weights, "group_size")
    match kind, bits, size:
        case "float", 8, 32:
            return "mxfp8"
        case "float", 8, _:
            return "fp8" if activations else "fp8-a16"
        case "float", 4, 16:
            return "nvfp4" if activations else "nvfp4-a16"
        case "float", 4, 32:
            return "mxfp4"
        case "int", _, _:
            return _integer(weights, bits, size, "num_bits")
    supported = "supported: float 8, float 4 in groups of 16 or 32, int 4, int 8"
    raise weights.error("type", f"{kind[:60]!r} with {bits} bits in groups of {size} is not known", supported)


_MODELOPT = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8",
    "MXFP8": "mxfp8",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "nvfp4-a16",
    "W4A16": "",  # these two: int4 of the stated group size
    "W4A16_AWQ": "",
    "W8A16": "int8",
}


def _modelopt(section: Fields, text: Fields, modules: Modules) -> _Scheme:
    ignore = NameList(section, "ignore", "exclude_modules")
    if "quant_algo" not in section and ("kv_cache_quant_algo" in section or "kv_cache_scheme" in section):
        return _Scheme({}, ignore)
    if section.text("quant_algo") != "MIXED_PRECISION":
        return _Scheme(_converted(_algorithm(section)), ignore)
    if "quantized_layers" in section:
        return _Scheme(_per_layer(section.child("quantized_layers"), modules), ignore)
    note = (
        "The checkpoint mixes NVFP4 and FP8 by a per-layer list that this config lacks: routed experts and dense MLPs"
        " are taken to be NVFP4, all other linear layers FP8."
    )
    return _Scheme(_converted("fp8") | {"expert": "nvfp4", "mlp": "nvfp4"}, ignore, note)


def _algorithm(section: Fields) -> str:
    algorithm = section.text("quant_algo")
    if algorithm not in _MODELOPT:
        supported = f"supported: {', '.join(_MODELOPT)}, MIXED_PRECISION"
        raise section.error("quant_algo", f"{algorithm[:60]!r} is not known", supported)
    return _MODELOPT[algorithm] or _integer(section, 4, _group_size(section, "group_size", default=128))


def _per_layer(layers: Fields, modules: Modules) -> _Formats:
    """ModelOpt's ``quantized_layers``: the commonest format of each group, if half of its layers have it."""
    names: dict[str, list[str]] = {}
    for name in layers.values:
        names.setdefault(_algorithm(layers.child(name)), []).append(name)
    lists = {fmt: NameList(layers, more=listed) for fmt, listed in names.items()}
    formats: _Formats = {}
    for group in modules.groups:
        found = {fmt: modules.named(listed, group)[0] for fmt, listed in lists.items()}
        best = max(found, key=lambda fmt: found[fmt], default="")
        if best and found[best] >= modules.enough(group):
            formats[group] = best
    return formats


_METHODS: dict[str, Callable[[Fields, Fields, Modules], _Scheme]] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "awq": _awq,
    "gptq": _gptq,
}


def _group_size(fields: Fields, *names: str, default: int | None = None) -> int | None:
    """Weights that share a scale; None (also written -1) for a whole row or tensor."""
    if any(fields.values.get(name) == -1 for name in names):
        return None
    return fields.optional_size(*names) or default


def _integer(fields: Fields, bits: int, group_size: int | None, name: str = "bits") -> str:
    sizes = {128: "int4", 64: "int4-g64", 32: "int4-g32", None: "int4-channel"}
    if bits == 8:
        return "int8"
    if bits != 4:
        raise fields.error(name, f"{bits} bits are not known", "supported: 4, 8")
    if group_size not in sizes:
        raise fields.error("group_size", f"{group_size} is not known", "supported: 32, 64, 128, -1")
    return sizes[group_size]


def _head(scheme: _Scheme, modules: Modules, head: MtpHead) -> _Formats:
    """Formats of the MTP head: those of an fp8 checkpoint, where no entry names the head."""
    if not set(scheme.formats.values()) <= {"fp8", "mxfp8", "mxfp4-a8"}:
        return {}
    groups = set[WeightGroup]().union(*map(groups_of, head.blocks)) & set(LINEAR_GROUPS) & scheme.formats.keys()
    return {group: scheme.formats[group] for group in groups if not modules.head_named(scheme.ignore, group)}
