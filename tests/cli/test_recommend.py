"""`wmtp recommend`: a verdict, one JSON document, a table of depths, and refusals that leave nothing behind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from wmtp_sim.api import estimate, recommend
from wmtp_sim.catalog.commands import read_command
from wmtp_sim.preflight import preflight
from wmtp_sim.units import milliseconds


@pytest.fixture
def choice_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would change a choice, which takes longest to find, is not looked for where a test does not ask."""
    for name in ("thresholds", "standing"):
        monkeypatch.setattr(f"wmtp_sim.decide.recommend.Recommendation.{name}", ())


MIXED = ("recommend", "qwen3.5-35b-a3b", "--gpu", "h200", "--context", "8K:0.5,64K:0.3,128K:0.2", "--batch", "1,4")


def test_a_verdict_in_words(run: Run) -> None:
    ran = run(*MIXED, "--alpha", "0.7", "--need", "1.2")
    assert (ran.status, ran.err) == (0, "")
    for words in ("8K (50%)", "Accept length needed for 1.20x", "over the mix needs an accept length of", "Run depth "):
        assert words in ran.out
    assert "Speculation pays: +" in ran.out


def test_the_document_says_what_python_says(run: Run) -> None:
    document = run(*MIXED, "--alpha", "0.7", "--json").document
    found = recommend(
        "qwen3.5-35b-a3b", "h200", context=[8192, 65536, 131072], context_shares=[5, 3, 2], batch=[1, 4], alpha=0.7
    )
    assert document["schema"] == "wmtp-recommend/1"
    assert found.choice is not None
    assert found.judged is not None
    for name in ("policy", "depth", "window", "sink"):
        assert document["choice"][name] == getattr(found.choice, name)
    assert document["choice"]["engine"] == document["engine"]
    assert [option["tokens_per_s"] for option in document["options"]] == pytest.approx(found.judged.rate)
    assert len(document["thresholds"]) == len(found.thresholds)
    assert [(each["axis"], each["gap"]) for each in document["standing"]] == [(s.axis, s.gap) for s in found.standing]
    assert [each["intervals"] for each in document["standing"]] == [
        [list(p) for p in s.intervals] for s in found.standing
    ]
    assert document["options"][1]["accept_length_needed"] == pytest.approx(found.needed[1])
    assert document["acceptance"]["other_depths"] == "as stated"


def test_without_an_acceptance_there_are_needs_and_no_choice(run: Run) -> None:
    document = run(*MIXED, "--json").document
    assert document["choice"] is None
    assert document["options"][1]["accept_length_needed_on_mix"] > 1
    assert "Break-even over the mix needs" in run(*MIXED).out


@pytest.mark.usefixtures("choice_alone")
@pytest.mark.parametrize("slo", [3, 5, 6, 8])
def test_a_target_is_judged_at_both_ends(run: Run, slo: float) -> None:
    """The words are those of the document's figures, and what `--slo-certain` is said to choose it chooses."""
    asked = (*MIXED, "--depth", "1,3", "--alpha", "0.7", "--slo-itl-ms", str(slo))
    words, document = " ".join(run(*asked).out.split()), run(*asked, "--json").document
    certain = run(*asked, "--slo-certain", "--json").document
    assert (document["slo_certain"], certain["slo_certain"]) == (False, True)
    chosen = document["choice"]
    if chosen is None:
        assert "Nothing meets" in words
        assert certain["choice"] is None
        assert "the slow end of its range included" in " ".join(run(*asked, "--slo-certain").out.split())
    elif chosen["longest_itl_high_s"] <= slo / 1e3:
        assert "even at the slow end of its range" in words
        assert certain["choice"] == chosen
    else:
        assert f"at the slow end of its range {milliseconds(chosen['longest_itl_high_s'])} ms" in words
        said = re.search(r"--slo-certain would choose (\w+)(?: depth (\d+))?", words)
        assert (said is None) == (certain["choice"] is None) == ("nothing meets it there" in words)
        if said is not None:
            policy, depth = said.groups()
            assert (certain["choice"]["policy"], certain["choice"]["depth"]) == (policy, int(depth or 0))


def test_one_accept_length_is_labelled(run: Run) -> None:
    document = run(*MIXED, "--accept-length", "2.5", "--at", "depth=3", "--json").document
    assert document["acceptance"]["other_depths"].startswith("assumed")
    assert "constant-rate-assumed" in [warning["id"] for warning in document["warnings"]]


@pytest.mark.parametrize("flags", [("--alpha", "0"), ("--alpha", "1"), ("--alpha", "0.6", "--slo-itl-ms", "0.1")])
def test_extremes_have_a_verdict(run: Run, flags: tuple[str, ...]) -> None:
    out = run(*MIXED, *flags).out
    assert run(*MIXED, *flags, "--json").document["schema"] == "wmtp-recommend/1"
    assert {"0": "Run without speculation", "1": "Run depth 8"}.get(flags[1], "Nothing meets 0.100 ms") in out


def test_what_does_not_fit_is_an_answer(run: Run) -> None:
    arguments = ("recommend", "qwen3.5-35b-a3b", "--gpu", "h200", "--context", "64M", "--alpha", "0.7")
    assert "Does not fit" in run(*arguments).out
    assert run(*arguments, "--json").document["choice"] is None


def test_a_table_is_written(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "depths.json"
    ran = run(*MIXED, "--alpha", "0.5", "--table", path)
    assert ran.status == 0
    table = json.loads(path.read_text(encoding="utf-8"))
    assert table["schema"] == "wmtp-depth-table/1"
    assert [len(row) for row in table["depth"]] == [2, 2, 2]
    assert [row["batch"] for row in table["rows"]] == table["batches"] == [1, 4]
    assert [each["up_to"] for each in table["by_batch"]] == [1, 4]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("choice_alone")
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_depths_by_batch_in_the_engines_words(run: Run, tmp_path: Path, engine: str) -> None:
    """The file and the line say what `by_batch` of the table says, with the draft KV of the table."""
    table, path = tmp_path / "t.json", tmp_path / "depths.json"
    asked = (*MIXED[:4], "--context", "8K,64K", "--batch", "1:64", "--alpha", "0.55", "--engine", engine)
    ran = run(*asked, "--table", table, "--by-batch", path, "--json")
    found, content, ours = ran.document["by_batch"], *(json.loads(each.read_text()) for each in (path, table))
    assert content == found["file"]
    depths = {row["up_to"]: row["depth"] for row in ours["by_batch"]}
    assert len(set(depths.values())) > 1
    for batch, depth in depths.items():
        assert next(row["depth"] for row in found["depths"] if batch <= row["up_to"]) == depth
    read = read_command(found["launch"])
    assert (read.deployment.depth, read.deployment.window) == (max(depths.values()), ours["window"])
    assert preflight(read, "h200").passed
    if engine == "sglang":
        assert read.line.value("--speculative-adaptive-config") == str(path)
        assert {int(first): slot["candidate_steps"] for first, slot in content.items()} == {
            row["above"] + 1: [row["depth"]] for row in found["depths"]
        }
    else:
        assert read.line.value("--speculative-config") == content
    words = " ".join(run(*asked, "--by-batch", path).out.split())
    assert f"launch line by batch (depth {found['depths'][0]['depth']} up to batch" in words
    assert f"{ours['batch_only_loss']:.1%}".replace("%", " % less than by batch and context") in words


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--engine", "trtllm"), "no flags are known of 'trtllm'"),
        (("--weights", "int4"), "--by-batch: no flag of sglang 0.5.23 converts"),
        (("--what-if",), "--by-batch: no flag of sglang 0.5.23 gives drafts the ring"),
        (
            ("--dp", "2", "--dp-attention"),
            "--by-batch: sglang 0.5.23 keeps one depth with 2 groups that share experts; --table",
        ),
        (
            ("--dp", "2", "--engine", "vllm"),
            "--by-batch: vllm 0.33.0 keeps one depth with 2 data-parallel replicas; --table",
        ),
        (("--alpha", "0.01"), "--by-batch: no depth pays at any batch of the mix; start without speculation"),
    ],
)
def test_depths_by_batch_that_no_line_says(
    refused: Callable[..., str], tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    alpha = () if "--alpha" in flags else ("--alpha", "0.9")
    path = tmp_path / "d.json"
    assert words in refused(*MIXED[:4], "--context", "1M", *alpha, *flags, "--by-batch", path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "sglang serve Qwen/Qwen3.5-27B --enable-two-batch-overlap",
            "sglang 0.5.23 keeps one depth with --enable-two-batch-overlap",
        ),
        ("vllm serve Qwen/Qwen3.5-27B -dp 2", "vllm 0.33.0 keeps one depth with 2 data-parallel replicas"),
        ("sglang serve XiaomiMiMo/MiMo-V2-Flash --tp 8", "sglang 0.5.23 keeps one depth for a drafter of 3 heads"),
    ],
)
def test_a_command_under_which_an_engine_keeps_one_depth(run: Run, tmp_path: Path, command: str, words: str) -> None:
    asked = ("recommend", "--gpu", "h200", "--context", "8K", "--alpha", "0.8", "--from-command", command)
    ran = run(*asked, "--by-batch", tmp_path / "d.json")
    assert (ran.status, ran.out) == (2, "")
    assert f"wmtp: --by-batch: {words}" in ran.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--accept-length", "2.5"), "--accept-length: holds at the depth it was measured at, which is not named"),
        (("--accept-length", "2.5", "--at", "batch=3"), "--at: 'batch' is no depth"),
        (("--alpha", "0.5", "--survival", "0.5"), "more than one way"),
        (("--alpha", "0.5", "--slo-itl-ms", "-1"), "--slo-itl-ms: -"),
        (("--context", "8K:0.5,64K"), "--context: '64K' has no share"),
        (("--context", "8K:0.5,64K:half"), "--context: 'half' is not a share"),
        (("--context", "8K:0.5,64K:nan"), "--context: nan is not a share"),
        (("--depth", "0"), "--depth: 0 drafts nothing"),
        (("--slo-certain",), "--slo-certain: is given without a target"),
        (("--need", "0"), "--need: 0 is not a number above 0"),
    ],
)
def test_refusals(refused: Callable[..., str], tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    assert words in refused(*MIXED, *flags, "--table", tmp_path / "t.json")
    assert not list(tmp_path.iterdir())


def test_a_table_that_memory_rules_out(refused: Callable[..., str], tmp_path: Path) -> None:
    line = refused(*MIXED[:4], "--context", "64M", "--alpha", "0.5", "--table", tmp_path / "t.json")
    assert line == "--table: no depth's memory fits at every cell; a smaller --batch or --context"
    assert not list(tmp_path.iterdir())


def test_off_for_want_of_memory_says_so(run: Run) -> None:
    memory = estimate("qwen3.5-35b-a3b", "h200", context=2**18).memory
    batch = int(memory["base"].max_batch)
    assert batch > memory["native"].max_batch
    mix = ("--context", "256K", "--batch", str(batch), "--alpha", "0.8")
    assert "no option that drafts is possible at every cell" in run(*MIXED[:4], *mix).out


@pytest.mark.parametrize(
    ("name", "words"),
    [("t.txt", "does not end in .json"), ("t.json", ": a table of depths needs an acceptance")],
)
@pytest.mark.parametrize("flag", ["--table", "--by-batch"])
def test_tables_that_cannot_be(refused: Callable[..., str], tmp_path: Path, flag: str, name: str, words: str) -> None:
    line = refused(*MIXED, flag, tmp_path / name)
    assert words in line
    assert line.startswith(flag)
    assert not list(tmp_path.iterdir())


def test_the_printed_command_is_the_choice(run: Run) -> None:
    """Read back, it is the deployment that was recommended, and no preflight rule calls it an error."""
    document = run(*MIXED, "--alpha", "0.7", "--json").document
    read, choice = read_command(document["launch"]), document["choice"]
    assert (read.deployment.depth, read.deployment.window) == (choice["depth"], choice["window"])
    assert (read.deployment.context, read.deployment.max_running) == (131_072, 4)
    assert read.line.unknown == read.line.refused == []
    assert preflight(read, "h200", context=65_536).passed


def test_a_command_stands_for_model_engine_ranks_and_caches(run: Run) -> None:
    """What the tool has no word for is carried along and named."""
    command = "vllm serve Qwen/Qwen3.5-27B -tp 2 --kv-cache-dtype fp8 --tool-call-parser qwen3 --made-up 3"
    ran = run("recommend", "--gpu", "h200", "--context", "64K", "--alpha", "0.7", "--from-command", command, "--json")
    options = ("--engine", "vllm", "--tp", "2", "--kv", "fp8", "--context", "64K", "--alpha", "0.7", "--json")
    same = run("recommend", "qwen3.5-27b", "--gpu", "h200", *options).document
    assert ran.document["choice"] == same["choice"]
    assert "kept, but not priced: --made-up 3" in ran.err
    assert ran.document["launch"].endswith("--tool-call-parser qwen3 --made-up 3")
    assert same["launch"].split("--")[1:4] == ran.document["launch"].split("--")[1:4]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "MODEL: is missing"),
        (("qwen3.5-27b", "--from-command", "vllm serve x"), "says MODEL itself"),
        (("--tp", "4", "--from-command", "vllm serve x"), "says --tp itself"),
        (("--engine", "sglang@26.06", "--from-command", "vllm serve x"), "the command starts vllm"),
    ],
)
def test_a_model_is_named_once(refused: Callable[..., str], flags: tuple[str, ...], words: str) -> None:
    assert words in refused("recommend", *flags, "--gpu", "h200", "--context", "64K")


@pytest.mark.usefixtures("choice_alone")
@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (("--weights", "int4"), "sglang 0.5.23 converts this checkpoint's weights to int4 (--weights)"),
        (("--head-weights", "fp8"), "--head-weights fp8"),
        (("--draft-weights", "fp8"), "--draft-weights fp8"),
        (("--engine", "trtllm"), "no flags are known of 'trtllm'"),
        (("--engine", "llama.cpp"), "no flags are known of 'llama.cpp'"),
        (("--engine", "vllm@pre-split"), "no flags are known of vllm pre-split"),
        (("--drafter", "eagle"), "the checkpoint of --drafter eagle"),
        (("--what-if",), "no flag of sglang 0.5.23 gives drafts the ring"),
        (("--engine", "sglang@26.06"), "no flag of sglang 26.06 gives drafts the ring"),
    ],
)
def test_no_command_where_no_flags_say_the_choice(run: Run, flags: tuple[str, ...], names: str) -> None:
    """One line says what cannot be said, and nothing else stands in for the command."""
    asked = ("recommend", "qwen3.5-27b", "--gpu", "h200", "--tp", "2", "--context", "1M", "--alpha", "0.9", *flags)
    document, words = run(*asked, "--json").document, run(*asked).out
    assert document["choice"]["policy"] != "off"
    assert document["launch"] is None
    assert names in document["launch_unsaid"]
    assert f"no launch line: {document['launch_unsaid']}" in " ".join(words.split())
    assert "launch line (" not in words


@pytest.mark.usefixtures("choice_alone")
def test_weights_that_a_flag_converts_are_said(run: Run) -> None:
    asked = ("recommend", "qwen3.5-27b", "--gpu", "h200", "--context", "8K", "--alpha", "0.7", "--json")
    stated = run(*asked, "--weights", "fp8").document
    assert stated["launch_unsaid"] is None
    again = run("recommend", *asked[2:], "--from-command", stated["launch"]).document
    assert again["choice"] == stated["choice"]
    assert again["launch"] == stated["launch"]


def test_nothing_chosen_is_nothing_to_start(run: Run) -> None:
    document = run(*MIXED, "--alpha", "0.6", "--slo-itl-ms", "0.1", "--json").document
    assert document["launch"] is document["launch_unsaid"] is None


@pytest.mark.usefixtures("choice_alone")
@pytest.mark.parametrize(
    ("gpu", "context", "backend"),
    [("h200", "1M", "fa3"), ("b200", "1M", "trtllm_mha"), ("mi300x", "1M", "aiter"), ("h200", "2K", "fa3")],
)
def test_a_note_about_the_window_is_for_those_who_choose_one(run: Run, gpu: str, context: str, backend: str) -> None:
    asked = ("recommend", "qwen3.5-35b-a3b", "--gpu", gpu, "--context", context, "--alpha", "0.7", "--depth", "1,3")
    document = run(*asked, "--json").document
    notes = [each["text"] for each in document["warnings"] if each["id"] == "engine-note"]
    chosen = document["choice"]["window"] is not None
    assert chosen == (context == "1M")
    assert [f"({backend}) ignores the window" in note for note in notes] == [True] * chosen
    assert not chosen or notes[0].split("pass ")[1] in document["launch"]


def test_what_a_window_may_cost(run: Run) -> None:
    """At the loss of acceptance that the verdict names, native drafts give as many tokens/s."""
    asked = ("recommend", "qwen3.5-35b-a3b", "--gpu", "h200", "--context", "1M", "--depth", "6", "--at", "depth=6")
    words = " ".join(run(*asked, "--accept-length", "4.5").out.split())
    (share,) = re.findall(r"The window is worth ([\d.]+) % of the accept length: if it costs more, native", words)
    lost = 4.5 * (1 - float(share) / 100)
    stated = run(*asked, "--accept-length", "4.5", "--windowed-accept-length", str(lost), "--json").document
    rates = {option["policy"]: option["tokens_per_s"] for option in stated["options"]}
    assert rates["flag"] == pytest.approx(rates["native"], rel=1e-3)
    assert "The window is worth" not in run(*asked, "--accept-length", "4.5", "--windowed-accept-length", "4.4").out


@pytest.mark.usefixtures("choice_alone")
def test_a_command_is_priced_as_it_is_started(run: Run) -> None:
    """Conversion of weights and the share of memory count; a draft backend that ignores windows is not kept."""
    command = (
        "python -m sglang.launch_server --model-path Qwen/Qwen3.5-35B-A3B --speculative-draft-attention-backend fa3"
    )
    command += " --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1"
    asked = ("recommend", "--gpu", "h200", "--context", "1M", "--alpha", "0.8", "--json", "--from-command")
    plain = run(*asked, command).document
    assert plain["choice"]["policy"] == "flag"
    assert "--speculative-draft-attention-backend flashinfer" in plain["launch"]
    converted = run(*asked, f"{command} --quantization fp8").document
    assert "--quantization fp8" in converted["launch"]
    assert converted["options"][0]["tokens_per_s"] > 1.02 * plain["options"][0]["tokens_per_s"]
    tight = run(*asked, f"{command} --mem-fraction-static 0.5").document
    assert tight["mix"]["fits"] == [[False]]


def test_another_drafter_of_a_command_is_not_priced_as_the_head(refused: Callable[..., str]) -> None:
    command = "python -m sglang.launch_server --model-path Qwen/Qwen3.5-27B --speculative-algorithm EAGLE3 "
    command += "--speculative-num-steps 3 --speculative-draft-model-path some/head"
    words = refused("recommend", "--gpu", "h200", "--context", "8K", "--from-command", command)
    assert "drafts otherwise than a chain" in words


TWO_HOSTS = (
    "python3 -m sglang.launch_server --model-path /models/DeepSeek-V3 --dist-init-addr head:5000 "
    "--tensor-parallel-size 16 --nnodes 2 --node-rank 0 --speculative-algorithm EAGLE --speculative-num-steps 3 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
)


@pytest.mark.usefixtures("choice_alone")
def test_a_command_of_two_hosts(run: Run) -> None:
    """Links between them are not priced, which is said; the line keeps what starts each host."""
    asked = ("recommend", "--gpu", "h100", "--context", "4K", "--batch", "16", "--alpha", "0.7", "--from-command")
    document = run(*asked, TWO_HOSTS, "--json").document
    assert "hosts-not-priced" in [warning["id"] for warning in document["warnings"]]
    assert "--nnodes 2" in document["launch"]
    assert "--dist-init-addr head:5000" in document["launch"]
    assert document["launch"].count("--nnodes") == 1
    assert "[hosts-not-priced]" in run(*asked, TWO_HOSTS).out


@pytest.mark.usefixtures("choice_alone")
def test_a_pipeline_of_a_command_is_said_not_to_be_priced(run: Run) -> None:
    command = "vllm serve Qwen/Qwen3.5-27B -tp 2 -pp 2"
    ran = run("recommend", "--gpu", "h200", "--context", "8K", "--alpha", "0.7", "--from-command", command)
    assert "kept, but not priced: --pipeline-parallel-size" in ran.err
    assert "--pipeline-parallel-size 2" in ran.out


def test_a_way_to_draft_that_is_not_priced_is_refused(refused: Callable[..., str]) -> None:
    """Also where no depth is stated."""
    command = "vllm serve Qwen/Qwen3-8B --spec-method suffix"
    words = refused("recommend", "--gpu", "h200", "--context", "8K", "--from-command", command)
    assert "drafts otherwise than a chain" in words
