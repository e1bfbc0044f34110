"""What cannot be used: one line on stderr that names the field and says what to type, exit code 2, nothing else."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.gpus import load_gpu
from wmtp_sim.catalog.models import catalog_folder, load_model
from wmtp_sim.errors import InputError

Refused = Callable[..., str]
POINT = ("estimate", "qwen3.5-35b-a3b", "--gpu", "h200", "--context", "1M", "--depth", "6")
CONFIG: dict[str, Any] = json.loads((catalog_folder() / "qwen3-8b.json").read_text())
ENGINE = (catalog_folder().parent / "engines" / "sglang@0.5.23.toml").read_text()
ESCAPE = "\x1b[31mred\x07\x1b]0;title\x07"


def base(model: Path | str, gpu: Path | str = "h200") -> tuple[Path | str, ...]:
    return ("estimate", model, "--gpu", gpu, "--context", "1K", "--depth", "0")


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return path


def short(value: object) -> str:
    """A name for a test whose parameter may be megabytes."""
    return repr(value)[:30]


# --- flags -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["0", "-1", "abc", "1e9", "", " ", ",", ":", "1,", "1:", "1:2:3", "5:1", "1.5", "nan"]
)
@pytest.mark.parametrize("flag", ["--context", "--window", "--batch"])
def test_counts(refused: Refused, flag: str, value: str) -> None:
    line = refused(*POINT, flag, value)
    assert line.startswith(f"{flag}: ")
    assert f"{flag} " in line.partition("; ")[2]  # an example of the flag itself


@pytest.mark.parametrize("value", ["-1", "abc", "1e9", "", " ", ",", ":", "1,", "1:", "1:2:3", "5:1", "1.5", "-2:3"])
def test_depths(refused: Refused, value: str) -> None:
    line = refused(*POINT, "--depth", value)
    assert line.startswith("--depth: ")
    assert "--depth " in line.partition("; ")[2]


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--context", "1MB", "for example --context 1M"),
        ("--context", "9" * 30, "is not a number"),
        ("--context", "8589934592G", "at most 1099511627776"),
        ("--context", "0:1M", "starts at 0"),
        ("--context", ",".join(["1"] * 5000), "a list of 5,000 values; at most 4096"),
        ("--context", "262,144", "for one number --context 262144"),
        ("--context", "1,048,576", "for one number --context 1048576"),
        ("--depth", "0:100000", "100,001 values; at most 4096"),
        ("--depth", "9" * 18, "is out of range"),
        ("--sink", "-1", "at least 0"),
        ("--sink", "4.5", "is not a whole number"),
        ("--sink", "many", "for example --sink 64"),
        ("--tp", "0", "from 1 to 1024"),
        ("--tp", "1.5", "for example --tp 8"),
        ("--tp", "100000", "from 1 to 1024"),
        ("--tp", "3", "3 ranks cannot share the "),
        ("--overlap", "1.5", "is not in [0, 1)"),
        ("--overlap", "-0.1", "is not in [0, 1)"),
        ("--overlap", "nan", "is not in [0, 1)"),
        ("--accept-length", "7.1", "exceeds 7"),
        ("--accept-length", "0.9", "at least 1"),
        ("--accept-length", "nan", "at least 1"),
        ("--accept-length", "inf", "exceeds 7"),
        ("--alpha", "1.5", "between 0 and 1"),
        ("--alpha", "-0.5", "between 0 and 1"),
        ("--alpha", "nan", "between 0 and 1"),
        ("--survival", "0.9,0.8,0.85,0.4,0.3,0.2", "rises from 0.8 at position 2"),
        ("--survival", "1.2,1,1,1,1,1", "between 0 and 1"),
        ("--survival", "0.9,0.8", "covers depth 2, not depth 6"),
        ("--survival", "", "is not a list of numbers"),
        ("--survival", "0.9;0.8", "for example --survival 0.9,0.8,0.7"),
        ("--conditional", "0.9,-0.1,1,1,1,1", "between 0 and 1"),
        ("--conditional", "0.9,nan,1,1,1,1", "between 0 and 1"),
        ("--acceptance-source", "hearsay", "given, measured, published or assumed"),
        ("--kv", "fp9", "one of bf16, bfloat16, fp8"),
        ("--draft-kv", "int3", "one of bf16, bfloat16, fp8"),
        ("--weights", "fp3", "one of fp32, bf16"),
        ("--head-weights", "fp3", "one of fp32, bf16"),
        ("--draft-weights", "fp3", "one of fp32, bf16"),
        ("--drafter", "qwen3-8b", "share the target's vocabulary"),
        ("--drafter", "nothing-of-the-kind", "`wmtp models` lists"),
        ("--drafter", "", "`wmtp models` lists"),
        ("--engine", "sglan", "did you mean sglang?"),
        ("--engine", "trt", "one of "),
        ("--gpu", "h200o", "did you mean h200-sxm"),
        ("--gpu", "", "known: a10"),
    ],
)
def test_other_flags(refused: Refused, flag: str, value: str, says: str) -> None:
    line = refused(*POINT, flag, value)
    assert line.startswith(f"{flag}: ")
    assert says in line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*POINT, "--accept-length", "4", "--alpha", "0.5"), "--accept-length and --alpha: "),
        ((*POINT, "--survival", "1,1,1,1,1,1", "--conditional", "1,1,1,1,1,1"), "keep one"),
        ((*POINT, "--alpha", "70%"), "'--alpha'"),
        ((*POINT, "--accept-length", "four"), "--accept-length: 'four' is not a number"),
        ((*POINT, "--windw", "5"), "--window"),
        ((*POINT, "extra"), "unexpected"),
        (("estimate", "qwen3-8b", "--gpu", "h200"), "'--context'"),
        (("estimate", "qwen3-8b", "--context", "1K"), "'--gpu'"),
        (("estimate",), "`wmtp estimate --help`"),
        (("estimat",), "Did you mean 'estimate'?"),
        (("models", "shw"), "Did you mean 'show'?"),
        (("models", "show"), "`wmtp models show --help`"),
        (("--flag",), "`wmtp --help`"),
        (("estimate", "qwen3-8b", "--gpu", "h200", "--context", "1K"), "give --drafter eagle"),
        (("estimate", "qwen3.5-35b-a3b", "--gpu", "h200", "--context", "1K,2K", "--explain"), "--explain: "),
        (
            (*POINT[:5], "1:1M", "--depth", "0:4000", "--batch", "1:1M"),
            "--context x --depth x --batch: 1,764,441 points",
        ),
        (("estimate", "deepseek-v3", *POINT[2:], "--weights", "fp8"), "states its own formats"),
        (("estimate", "qwen3.5-35b", *POINT[2:]), "did you mean qwen3.5-35b-a3b"),
        (("estimate", "Qwen/Qwen3-8B", *POINT[2:]), "did you mean qwen3-8b"),
        (("models", "show", "lama-3.1-8b"), "did you mean llama-3.1-8b"),
    ],
)
def test_usage(refused: Refused, words: tuple[str, ...], says: str) -> None:
    assert says in refused(*words)


def test_json_changes_nothing_about_refusals(refused: Refused) -> None:
    assert refused(*POINT, "--window", "0", "--json") == refused(*POINT, "--window", "0")


@pytest.mark.parametrize(
    "words",
    [
        (ESCAPE,),
        ("estimate", ESCAPE, *POINT[2:]),
        ("estimate", "qwen3-8b", f"--{ESCAPE}", *POINT[2:]),
        *(
            (*POINT, flag, ESCAPE)
            for flag in ("--gpu", "--engine", "--context", "--depth", "--sink", "--tp", "--alpha")
        ),
        *((*POINT, flag, ESCAPE) for flag in ("--survival", "--kv", "--weights", "--drafter", "--acceptance-source")),
        *((*POINT, flag, f"{ESCAPE}.toml") for flag in ("--gpu", "--engine")),
        ("models", "show", f"{ESCAPE}/config.json"),
    ],
)
def test_escape_sequences_do_not_reach_the_terminal(refused: Refused, words: tuple[str, ...]) -> None:
    refused(*words)


# --- model files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not valid JSON at line 1"),
        (json.dumps(CONFIG)[:200], "is the download complete?"),
        ("[1, 2]", "holds a JSON list"),
        ("null", "an object {...} is needed"),
        ('"text"', "holds a JSON str"),
        ("{}", "model_type: is missing"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
        ('{"model_type": "qwen3", "hidden_size": ' + "9" * 5000 + "}", "a number too long"),
        (b"\x7fELF\x02\x01\x01" + bytes(range(256)), "is not UTF-8 text"),
        (b"GGUF\x03" + b"\0" * 100, "not valid JSON"),
        (" " * (17 * 2**20), "has 17,825,792 bytes; at most 16,777,216 are read"),
    ],
    ids=short,
)
def test_broken_model_files(refused: Refused, tmp_path: Path, content: str | bytes, says: str) -> None:
    path = written(tmp_path / "odd.json", content)
    line = refused(*base(path))
    assert "odd.json: " in line
    assert says in line
    assert refused("models", "show", path) == line


@pytest.mark.parametrize("value", ["4096", None, [4096], {}, True, math.nan, math.inf, -1, 0, 1.5, 2**31 + 1, 10**30])
@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"])
def test_bad_fields(refused: Refused, tmp_path: Path, field: str, value: Any) -> None:
    path = written(tmp_path / "config.json", json.dumps(CONFIG | {field: value}))
    assert f"config.json: {field}" in refused(*base(path))


LARGEST = 2**24
WIDTHS = ("hidden_size", "vocab_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")


@pytest.mark.parametrize("field", [*WIDTHS, "num_hidden_layers", "max_position_embeddings"])
def test_sizes_have_a_ceiling(refused: Refused, run: Callable[..., Any], tmp_path: Path, field: str) -> None:
    """And what lies below it is priced, with a head of three hidden states side by side too."""
    path = written(tmp_path / "config.json", json.dumps(CONFIG | {field: 2**31}))
    for words in (base(path), ("recommend", path, "--gpu", "h200", "--context", "1K", "--alpha", "0.5")):
        assert refused(*words).startswith(f"config.json: {field}: 2147483648 is out of range; ")
    if field in WIDTHS:
        heads = {"num_attention_heads": LARGEST} if field == "num_key_value_heads" else {}
        written(path, json.dumps(CONFIG | heads | {field: LARGEST}))
        ran = run("estimate", path, "--gpu", "h200", "--context", "1K", "--drafter", "eagle", "--json")
        assert (ran.status, ran.err) == (0, "")
        assert ran.document["memory"]["fits"] is False


def test_contradictions_and_unknown_architectures(refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    written(path, json.dumps(CONFIG | {"num_attention_heads": 7}))
    assert "num_attention_heads must be a multiple of num_key_value_heads" in refused(*base(path))
    written(path, json.dumps(CONFIG | {"model_type": f"new{ESCAPE}\n"}))
    line = refused(*base(path))
    assert "config.json: model_type: 'new" in line
    assert "known: bailing_hybrid, deepseek_v3" in line


def test_places_that_hold_no_model(refused: Refused, tmp_path: Path) -> None:
    assert "holds no config.json" in refused(*base(tmp_path))
    (tmp_path / "config.json").mkdir()
    assert "holds no config.json" in refused(*base(tmp_path))
    gpu = written_folder(tmp_path / "a.toml")
    assert "cannot be read (a folder, pipe or device)" in refused(*base("qwen3-8b", gpu=gpu))
    for nowhere in (tmp_path / "nothing.json", "x" * 5000, "", " ", "/dev/null/config.json"):
        assert refused(*base(nowhere)).startswith("MODEL: no catalogue model or file is called ")


def written_folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_folder_named_like_a_model_does_not_hide_it(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = written_folder(tmp_path / "qwen3-8b")
    assert load_model("qwen3-8b").layers == 36
    written(folder / "config.json", json.dumps(CONFIG | {"num_hidden_layers": 2}))
    assert load_model("qwen3-8b").layers == 2


def test_unreadable_files(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permission to look is refused for the folder, or for the file: root would be let in, so it is simulated."""
    path = written(tmp_path / "config.json", "{}")

    def denied(*args: Any, **more: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", denied)
        assert "config.json: cannot be read (Permission denied)" in refused(*base(path))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", denied)
        with pytest.raises(InputError, match=r"config\.json: cannot be read \(Permission denied\)"):
            load_model(str(path))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_really_unreadable_files(refused: Refused, tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", "{}")
    path.chmod(0)
    assert "cannot be read (Permission denied)" in refused(*base(path))


def test_names_that_are_no_paths() -> None:
    """Only from Python: a command line holds no NUL."""
    for load in (load_model, load_gpu, load_engine):
        with pytest.raises(InputError):
            load("a\0b")
        with pytest.raises(InputError):
            load("a\0b.toml")


# --- GPU, engine and drafter files ---------------------------------------------------------------------------------

GPU = {
    "name": "My GPU",
    "hbm_bandwidth_bytes_per_s": 2.5e12,
    "memory_bytes": 64_000_000_000,
    "peak_dense_flops": {"bf16": 5e14},
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hbm_bandwidth_bytes_per_s": -1.0}, "gpu.json: hbm_bandwidth_bytes_per_s: "),
        ({"hbm_bandwidth_bytes_per_s": 4800}, "gpu.json: hbm_bandwidth_bytes_per_s: "),
        ({"memory_bytes": math.nan}, "gpu.json: memory_bytes: "),
        ({"peak_dense_flops": {"bf16": "fast"}}, "gpu.json: peak_dense_flops.bf16: "),
        ({"peak_dense_flops": {}}, "peak_dense_flops.bf16: is missing"),
        ({"bandwidth": 1}, "gpu.json: bandwidth: is not a known field"),
        ({ESCAPE: 1}, "is not a known field"),
        ({"name": ["\x1b"]}, "gpu.json: name: "),
    ],
)
def test_gpu_files(refused: Refused, tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = written(tmp_path / "gpu.json", json.dumps(GPU | change))
    assert says in refused(*base("qwen3-8b", gpu=path))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("colour = 'red'\n" + ENGINE, "engine.toml: colour: is not a known field"),
        (ENGINE.replace("[host]", "[host]\nsped_s = 1"), "is not a known field"),
        (ENGINE.replace('schema = "wmtp-engine/2"', 'schema = "wmtp-engine/9"'), "this release reads 'wmtp-engine/2'"),
        ("", "engine.toml: schema: is None"),
        ("a = ", "not valid TOML"),
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("a = " + "9" * 10_000, "a number too long"),
        (b"\xff\xfe\0", "is not UTF-8 text"),
    ],
    ids=short,
)
def test_engine_files(refused: Refused, tmp_path: Path, content: str | bytes, says: str) -> None:
    path = written(tmp_path / "engine.toml", content)
    assert says in refused(*POINT, "--engine", path)


def test_an_engine_file_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.toml", ENGINE)
    first = load_engine(str(path))
    written(path, ENGINE.replace(f'version = "{first.version}"', 'version = "mine"'))
    assert load_engine(str(path)).version == "mine"


def test_draft_heads(refused: Refused, tmp_path: Path) -> None:
    head = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 1,
        "intermediate_size": 14_336,
        "draft_vocab_size": 32_000,
    }
    for change, says in (
        ({"hidden_size": 5120}, "hidden_size: 5120 differs from the target's 4096"),
        ({"num_attention_heads": 7}, "num_attention_heads: "),
        ({"num_attention_heads": 10_000}, "head_dim: 0 is out of range"),
        ({"num_hidden_layers": 2}, "num_hidden_layers: only one-layer"),
        ({"draft_vocab_size": "many"}, "draft_vocab_size: 'many' is not a whole number"),
    ):
        path = written(tmp_path / "head.json", json.dumps(head | change))
        line = refused("estimate", "llama-3.1-8b", *POINT[2:], "--drafter", path)
        assert line.startswith("head.json: ")
        assert says in line
