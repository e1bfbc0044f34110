"""Names of modules in checkpoints: which weight groups a quantisation section's lists of names speak of.

Lists hold plain names, globs, or ``re:`` expressions from a file nobody vouches for, so that expressions are translated
into globs, which cannot hang, and what is not understood is refused.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from wmtp_sim.catalog.families.architecture import Architecture
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Block
from wmtp_sim.spec.precision import GROUPS, WeightGroup

#: What a checkpoint puts before ``layers.N.``, ``lm_head`` and ``embed_tokens``.
_PREFIXES = ("", "model.", "model.language_model.", "language_model.model.", "language_model.", "backbone.")
#: The same for an MTP head with names of its own; DeepSeek, GLM and Ling number theirs after the last layer.
_HEAD_PREFIXES = ("mtp.layers.0.", "model.mtp.layers.0.", "model.mtp_layers.0.", "mtp.0.")
#: The modules that stand for a channel mixer's groups within a layer.
_TAILS: dict[WeightGroup, tuple[str, ...]] = {
    "mlp": ("mlp.gate_proj", "mlp.up_proj", "mixer.up_proj", "feed_forward.gate_proj"),
    "expert": (
        "mlp.experts.0.gate_proj",
        "mlp.experts.gate_up_proj",
        "mixer.experts.0.up_proj",
        "block_sparse_moe.experts.0.w1",
        "ffn.experts.0.w1",
        "feed_forward.experts.0.gate_proj",
    ),
    "shared_expert": (
        "mlp.shared_expert.gate_proj",
        "mlp.shared_experts.gate_proj",
        "mixer.shared_experts.up_proj",
        "block_sparse_moe.shared_experts.gate_proj",
        "ffn.shared_experts.w1",
    ),
    "router": ("mlp.gate", "mlp.router", "mixer.gate", "block_sparse_moe.gate", "ffn.gate"),
}
#: The same for token mixers, by kind: Kimi calls its KDA ``self_attn``.
_ATTENTION_TAILS = {
    "attention": ("self_attn.q_proj", "self_attn.qkv_proj", "mixer.q_proj", "attention.q_proj"),
    "mla": ("self_attn.q_b_proj", "self_attn.q_proj", "attention.q_b_proj"),
    "compressed": ("attn.wq_b", "self_attn.q_b_proj"),
}
_OUT_TAILS = {
    "attention": ("self_attn.o_proj", "mixer.o_proj", "attention.dense"),
    "mla": ("self_attn.o_proj", "attention.dense"),
    "compressed": ("attn.wo_b", "self_attn.o_b_proj"),
}
_LINEAR_TAILS = {
    "gdn": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz"),
    "kda": ("self_attn.q_proj",),
    "mamba2": ("mixer.in_proj", "mamba.in_proj"),
    "mamba1": ("mixer.in_proj", "mamba.in_proj"),
    "lightning": ("attention.query_key_value",),
}
_UNLAYERED: dict[WeightGroup, str] = {"lm_head": "lm_head", "embedding": "embed_tokens"}

#: More layers than any model has: bounds the work on an absurd config.
_MAX_LAYERS = 512
_MAX_ENTRY = 1000
_MAX_PATTERNS = 1024
_MAX_VARYING = 128


class Modules:
    """The names that a model's modules may have, which groups it has, and in how many layers."""

    def __init__(self, architecture: Architecture, one_stands_for_all: bool) -> None:
        self.blocks, self.one_stands_for_all = architecture.blocks, one_stands_for_all
        self.layers = sum(block.count for block in self.blocks)
        found = set(_UNLAYERED).union(*map(groups_of, self.blocks))
        self.groups = tuple(group for group in GROUPS if group in found)
        head = architecture.mtp.blocks if architecture.mtp else ()
        kinds = dict.fromkeys(mixer.kind for block in (*self.blocks, *head) for mixer in block.mixers)
        self.tails = dict(_TAILS)
        self.tails["attention"] = tuple(tail for kind in kinds for tail in _ATTENTION_TAILS.get(kind, ()))
        self.tails["attention_out"] = tuple(tail for kind in kinds for tail in _OUT_TAILS.get(kind, ()))
        self.tails["linear_mixer"] = tuple(tail for kind in kinds for tail in _LINEAR_TAILS.get(kind, ()))

    def size(self, group: WeightGroup) -> int:
        """How many layers have the group."""
        if group in _UNLAYERED:
            return 1
        return min(sum(block.count for block in self.blocks if group in groups_of(block)), _MAX_LAYERS)

    def enough(self, group: WeightGroup) -> int:
        """In how many layers a list must name the group's modules to speak for the group."""
        return 1 if self.one_stands_for_all else (self.size(group) + 1) // 2

    def named(self, names: NameList, group: WeightGroup) -> tuple[int, int]:
        """In how many layers ``names`` has the group's modules, and of how many."""
        size = self.size(group)
        if group in _UNLAYERED:
            return int(any(names.has(prefix + _UNLAYERED[group]) for prefix in _PREFIXES)), size
        if any(names.has_everywhere(name) for name in self._spelled(group, 0)):
            return size, size
        layers = names.layers_to_ask(min(self.layers, _MAX_LAYERS))
        return min(size, sum(any(map(names.has, self._spelled(group, layer))) for layer in layers)), size

    def _spelled(self, group: WeightGroup, layer: int) -> Iterator[str]:
        return (f"{prefix}layers.{layer}.{tail}" for tail in self.tails[group] for prefix in _PREFIXES)

    def head_named(self, names: NameList, group: WeightGroup) -> bool:
        """Whether ``names`` has the group's modules in the MTP head."""
        places = [*_HEAD_PREFIXES, *(f"{prefix}layers.{self.layers}." for prefix in _PREFIXES)]
        return any(names.has(place + tail) for place in places for tail in self.tails[group])


def groups_of(block: Block) -> set[WeightGroup]:
    """The weight groups of one layer."""
    found: set[WeightGroup] = set()
    for mixer in block.mixers:
        found.update(("linear_mixer",) if mixer.kind in _LINEAR_TAILS else ("attention", "attention_out"))
    for channel in block.channels:
        found.update(("mlp",) if channel.kind == "mlp" else ("expert", "router"))
        if channel.kind == "moe" and channel.shared_inner:
            found.add("shared_expert")
    return found


_Test = Callable[[str], object]
_INDEX = re.compile(r"\blayers\.(\d+)(?=\.|$)")


class NameList:
    """Module names as sections list them: plain, globs, or ``re:`` expressions.

    A plain name has every module below it, and may leave out what comes before it (``gate``, ``model.layers.3``). A
    glob must match from the start, an expression need not match to the end (both as in compressed-tensors). Patterns
    are compiled from globs by `fnmatch`, whose expressions cannot backtrack into earlier wildcards.

    Args:
        section: the object that holds the list.
        fields: the list's field; the first that is present is read.
        more: entries from elsewhere.
    """

    def __init__(self, section: Fields, *fields: str, more: Iterable[str] = ()) -> None:
        self.plain: set[str] = set()
        self.everywhere: list[_Test] = []  # patterns that cannot tell layers apart
        self.varying: list[_Test] = []  # patterns that can
        self.at: dict[int, list[_Test]] = {}  # patterns with a literal layer index
        self.count = 0
        self.indices: set[int] = set()
        name = next((f for f in fields if f in section), None)
        listed = [] if name is None else section.items(name, of=str)
        for entry in [*listed, *more]:
            try:
                self._add(entry)
            except _Unsupported as error:
                problem = f"the entry {entry[:60]!r}{'...' * (len(entry) > 60)} {error}"
                hint = "give plain module names, globs, or simple re: entries"
                raise section.error(name or "names", problem, hint) from None

    def _add(self, entry: str) -> None:
        if len(entry) > _MAX_ENTRY:
            raise _Unsupported(f"is {len(entry):,} characters long")
        if entry.startswith("re:"):
            for glob in _expanded(entry[3:]):
                self._add_pattern("." + (f"{glob[:-1]}." if glob.endswith(_END) else f"{glob}*"))
        elif any(character in entry for character in "*?["):
            self._add_pattern(f".{entry}.*")
        else:
            self.plain.add(entry.strip("."))
            self.indices.update(_indices(entry))

    def _add_pattern(self, glob: str) -> None:
        self.count += 1
        test = re.compile(fnmatch.translate(glob)).match
        indices = _indices(glob)
        self.indices.update(indices)
        if indices:
            self.at.setdefault(indices[0], []).append(test)
        else:
            (self.varying if re.search(r"[\d?[]", glob) else self.everywhere).append(test)
        if self.count > _MAX_PATTERNS or len(self.varying) > _MAX_VARYING:
            raise _Unsupported(f"is one of more than {min(self.count, _MAX_PATTERNS)} patterns")

    def layers_to_ask(self, layers: int) -> Sequence[int]:
        """The layers that an entry may single out."""
        return range(layers) if self.varying else sorted(index for index in self.indices if index < layers)

    def has_everywhere(self, name: str) -> bool:
        """Whether the list has a module for a reason that holds in every layer."""
        dotted = f".{name}."
        if any(test(dotted) for test in self.everywhere):
            return True
        return bool(self.plain) and any(run in self.plain for run in _runs(name) if not _INDEX.search(run))

    def has(self, name: str) -> bool:
        """Whether the list has a module, or one above it."""
        at = [test for index in _indices(name) for test in self.at.get(index, ())]
        dotted = f".{name}."
        if any(test(dotted) for test in (*self.everywhere, *self.varying, *at)):
            return True
        return bool(self.plain) and any(run in self.plain for run in _runs(name))


def _indices(name: str) -> list[int]:
    return [int(index) for index in _INDEX.findall(name) if len(index) < 6]


def _runs(name: str) -> Iterator[str]:
    """Every run of consecutive dotted parts of a module's name."""
    parts = name.split(".")
    return (".".join(parts[a:b]) for a in range(len(parts)) for b in range(a + 1, len(parts) + 1))


# --- `re:` entries: regular expressions from a file, without their power to hang ------------------------------------

_END = "\0"
_MAX_GLOBS = 512
_DIGIT = "[0-9]"
#: What may stand in an expression, outside and inside of its groups.
_GROUP = re.compile(r"\((?:\?:)?(?P<inside>[^()]*)\)(?P<optional>\??)")
_ATOM = re.compile(r"(?P<atom>\.[*+]|\\d\+?|\\\W|[\w:/-]|\.|\$)(?P<optional>\??)")
_REPEATS = {
    ".": ["?"],
    ".*": ["*"],
    ".+": ["?*"],
    "\\d": [_DIGIT],
    "\\d+": [_DIGIT, _DIGIT * 2, _DIGIT * 3],
    "$": [_END],
}


class _Unsupported(Exception):
    """An entry that is not understood; the text says why."""


def _expanded(expression: str) -> list[str]:
    """The globs that a regular expression stands for; ``_END`` closes those that end in ``$``.

    Understood: literals, escaped punctuation, ``.``, ``.*``, ``.+``, ``\\d`` or ``[0-9]``, ``\\d+`` (up to three
    digits), groups of alternatives, ``?`` after any of them, a leading ``^`` and a closing ``$``.
    """
    globs = _sequence(expression.removeprefix("^").replace(_DIGIT, "\\d"), grouped=False)
    if any(_END in glob[:-1] for glob in globs):
        raise _Unsupported("has a '$' that is not at its end")
    return globs


def _sequence(expression: str, grouped: bool) -> list[str]:
    globs, at = [""], 0
    while at < len(expression):
        piece = _ATOM.match(expression, at) or (None if grouped else _GROUP.match(expression, at))
        if piece is None:
            raise _Unsupported(f"has {expression[at : at + 10]!r}, which is not understood")
        choices = _choices(piece)
        if len(globs) * len(choices) > _MAX_GLOBS:
            raise _Unsupported("has too many alternatives")
        globs = [head + tail for head in globs for tail in choices]
        at = piece.end()
    return globs


def _choices(piece: re.Match[str]) -> list[str]:
    """The globs of one atom or group."""
    if piece.re is _GROUP:
        found = [glob for option in piece["inside"].split("|") for glob in _sequence(option, grouped=True)]
    else:
        found = _REPEATS.get(piece["atom"]) or [_literal(piece["atom"])]
    lazy = piece.re is _ATOM and piece["atom"] in (".*", ".+", "\\d+")  # a lazy repeat matches the same names
    return ["", *found] if piece["optional"] and not lazy else found


def _literal(atom: str) -> str:
    character = atom.removeprefix("\\") or atom
    return f"[{character}]" if character in "*?[" else character
