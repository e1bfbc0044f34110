"""Names of flags: what a release takes, and what is proposed in place of a name that it does not take."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmtp_sim.catalog.flags import Vocabulary, grammar_names, load_grammar, read_line, suggestion, vocabulary

RELEASES = [f"{name}@{release}" for name in grammar_names() for release in load_grammar(name).releases]
KNOWN = {release: vocabulary(release) for release in RELEASES}
#: Names of switches, of which some switch off.
SWITCHES = sorted(
    (release, name)
    for release, known in KNOWN.items()
    for name, main in known.names.items()
    if name.startswith("--") and known.flags[main].kind == "switch"
)


def proposed(known: Vocabulary, name: str) -> str | None:
    """The flag that a hint names."""
    found = re.fullmatch(r"did you mean (.+)\?", suggestion(known, name))
    return found[1] if found else None


def opposites(name: str) -> list[str]:
    """A name with its meaning turned round, in each way in which engines do that."""
    bare = name.removeprefix("--")
    turned = [f"--no-{bare}"]
    turned += [f"--{bare.removeprefix('no-')}"] if bare.startswith("no-") else []
    turned += [f"--disable-{bare.removeprefix('enable-')}"] if bare.startswith("enable-") else []
    turned += [f"--enable-{bare.removeprefix('disable-')}"] if bare.startswith("disable-") else []
    return turned


@pytest.mark.parametrize("release", RELEASES)
def test_a_hint_never_proposes_the_opposite(release: str) -> None:
    """Of every switch of every release, and of every way to turn its name round that the release does not take."""
    known = KNOWN[release]
    for name in (name for each, name in SWITCHES if each == release):
        for turned in opposites(name):
            if known.resolve(turned) is None:
                hint = proposed(known, turned) or ""
                assert hint not in (name, *opposites(turned))
                assert turned not in opposites(hint)


@given(st.sampled_from(SWITCHES), st.data())
def test_nor_does_it_where_the_name_is_mistyped(switch: tuple[str, str], data: st.DataObject) -> None:
    """A letter that is doubled or left out does not turn a name round either."""
    release, name = switch
    at = data.draw(st.integers(2, len(name) - 1))
    typed = data.draw(st.sampled_from([name[:at] + name[at - 1 :], name[:at] + name[at + 1 :]]))
    meant = proposed(KNOWN[release], typed)
    assert meant not in opposites(name)
    assert name not in opposites(meant or "")


@pytest.mark.parametrize(
    ("release", "typed", "hint"),
    [
        ("vllm@0.26", "--disable-prefix-caching", "did you mean --no-enable-prefix-caching?"),
        ("vllm@0.33", "--dissable-prefix-cachin", "did you mean --disable-prefix-caching?"),
        ("vllm@0.33", "--no-enforce-eagre", "did you mean --no-enforce-eager?"),
        ("sglang@0.5.23", "--no-disable-radix-cache", "drop it, or check its spelling"),
        ("sglang@0.5.23", "--cuda-graph-bs 4", "sglang 26.06 has it"),
        ("vllm@0.26", "--no-enable-fault-tolerance", "vllm 0.33 has it"),
    ],
)
def test_hints(release: str, typed: str, hint: str) -> None:
    assert suggestion(KNOWN[release], typed) == hint


@pytest.mark.parametrize(
    ("flag", "name", "value"),
    [
        ("--no-enable-prefix-caching", "--enable-prefix-caching", False),
        ("--disable-prefix-caching", "--enable-prefix-caching", False),
        ("--enable-prefix-caching", "--enable-prefix-caching", True),
        ("--no-disable-hybrid-kv-cache-manager", "--disable-hybrid-kv-cache-manager", False),
        ("--enable-hybrid-kv-cache-manager", "--disable-hybrid-kv-cache-manager", False),
        ("--disable-hybrid-kv-cache-manager", "--disable-hybrid-kv-cache-manager", True),
        ("--no_enable_prefix_caching", "--enable-prefix-caching", False),
        ("--no-enable-prefix", "--enable-prefix-caching", False),
    ],
)
def test_vllm_keeps_the_older_names_of_its_switches(flag: str, name: str, value: bool) -> None:
    """As the parser of the 0.33.0 release answers."""
    line = read_line(KNOWN["vllm@0.33"], [flag])
    assert (line.values, line.unknown, line.refused) == ({name: value}, [], [])


def test_every_pair_of_vllm_is_taken_with_no_before_it() -> None:
    """EnableDisableAction gives each ``--enable-x`` and ``--disable-x`` its ``--no-`` and its opposite."""
    known = KNOWN["vllm@0.33"]
    pairs = [name for name, flag in known.flags.items() if flag.off and name.startswith(("--enable-", "--disable-"))]
    assert len(pairs) > 30
    for name in pairs:
        assert {f"--no-{name[2:]}", opposites(name)[-1]} <= set(known.flags[name].off)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--speculative-config.max_model_len 128k", {"max_model_len": 128_000}),
        ("-sc.max_model_len=1K", {"max_model_len": 1024}),
        ("-sc.kv_cache_dtype auto", {"kv_cache_dtype": "auto"}),
        ("-sc.method mtp -sc.num_speculative_tokens 3", {"method": "mtp", "num_speculative_tokens": 3}),
        (
            "-cc.pass_config.fuse_attn_quant true -cc.mode none",
            {"pass_config": {"fuse_attn_quant": True}, "mode": "none"},
        ),
    ],
)
def test_keys_of_an_object(words: str, value: object) -> None:
    """As vLLM's parser merges them: a unit makes a number, a further dot goes one level down."""
    line = read_line(KNOWN["vllm@0.33"], words.split())
    assert (list(line.values.values()), line.refused, line.unknown) == ([value], [], [])


def test_sglang_takes_no_keys_behind_a_dot() -> None:
    line = read_line(KNOWN["sglang@0.5.23"], ["--cuda-graph-config.decode.backend", "disabled"])
    assert line.unknown == ["--cuda-graph-config.decode.backend disabled"]
