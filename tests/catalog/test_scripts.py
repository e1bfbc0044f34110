"""Launch lines found in shell scripts: as a shell would cut them, with nothing run, and hostile ones refused."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmtp_sim.catalog.commands import LONGEST_COMMAND, read_command
from wmtp_sim.catalog.scripts import statements
from wmtp_sim.errors import InputError

SCRIPT = """\
#!/usr/bin/env bash
set -euo pipefail   # stop; at once
# vllm serve this-is-a-comment
export SGLANG_SIMULATE_ACC_LEN=3 HF_HOME="/data/with; semicolon"
LOCAL=1
if ! command -v vllm >/dev/null; then echo 'no vllm serve here; sorry' >&2; exit 1; fi
cat > notes.txt <<'EOF'
vllm serve in-a-here-document
EOF
mkdir -p "$LOG" && CUDA_VISIBLE_DEVICES=0,1 exec vllm serve "Qwen/Qwen3.5-35B-A3B" \\
    -tp 2 \\
    --served-model-name $NAME `id -u` \\
    --speculative-config '{"method": "mtp", "num_speculative_tokens": 3}' \\
    --port ${PORT:-8000} > "$LOG/serve#1.log" 2>&1 &
export AFTER=1
wait
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "serve it.sh"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("before", ["", "bash ", "sh ", "source ", ". "])
def test_the_one_launch_line_of_a_script(script: Path, before: str) -> None:
    read = read_command(f"{before}{script}")
    assert (read.deployment.model, read.deployment.tp, read.deployment.depth) == ("Qwen/Qwen3.5-35B-A3B", 2, 3)
    assert read.line.value("--served-model-name")[0] == "$NAME"
    assert read.line.variables == [("--port", "${PORT:-8000}")]
    assert (read.line.unknown, read.line.refused) == ([], [])
    exported = ("SGLANG_SIMULATE_ACC_LEN=3", "HF_HOME=/data/with; semicolon")
    assert read.aside[:4] == (*exported, "CUDA_VISIBLE_DEVICES=0,1", "exec")
    assert not any("AFTER" in word or "LOCAL" in word for word in read.aside)


def test_windows_line_ends_and_sglang(script: Path) -> None:
    text = "export A=1\r\npython3 -m sglang.launch_server \\\r\n  --model-path m \\\r\n  --tp 4 | tee log\r\n"
    script.write_bytes(text.encode())
    read = read_command(str(script))
    assert (read.engine.name, read.deployment.tp, read.aside) == ("sglang", 4, ("A=1", "python3"))


@pytest.mark.parametrize(
    "text",
    [
        "if true; then vllm serve m -tp 2; fi",
        "(vllm serve m -tp 2)",
        "( vllm serve m -tp 2 )",
        "start() {\n  vllm serve m -tp 2\n}\nstart",
        "vllm serve m -tp 2&\nwait",
        "vllm serve m -tp 2 >log 2>&1",
        "vllm serve m -tp 2 2>/dev/null | tee >(cat)",
        "sleep 1;vllm serve m -tp 2;echo vllm serve n",
        "cat <<-END > f\n\tvllm serve n\n\tEND\nvllm serve m -tp 2",
        "cat <<A <<B\nvllm serve n\nA\nvllm serve o\nB\nvllm serve m -tp 2",
        "cat <<<'vllm serve n'; vllm serve m -tp 2",
        "X=$(echo a; echo b) vllm serve m -tp 2",
        "echo \"a 'b\" '\"'; vllm serve m -tp 2 # 'c",
        "nohup numactl -N 0 /usr/bin/vllm serve m -tp 2 &>> log",
        "vllm serve m --api-key a#b -tp 2",
        "vllm serve m\\\n -tp\\\n 2",
    ],
)
def test_what_shells_take_is_understood(script: Path, text: str) -> None:
    script.write_text(text)
    read = read_command(str(script))
    assert (read.deployment.model.rstrip(")"), read.deployment.tp) == ("m", 2)
    assert (read.line.unknown, read.line.refused) == ([], [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "serve it.sh starts neither "),
        ("# vllm serve m\necho vllm serve m", "starts neither "),
        ("docker run image bash -c 'vllm serve m'", "starts neither "),
        ("if a; then\n vllm serve m\nelse\n sglang serve m\nfi", "serve it.sh starts 2 servers, in lines 2 and 4"),
        ("vllm serve a; vllm serve b &\nvllm serve c", "starts 3 servers, in lines 1 and 1 and 2"),
        ("vllm serve 'm", "cannot be split into words (no closing quotation)"),
        ("vllm serve", "names no model"),
        ("vllm serve m -tp $TP", "--tensor-parallel-size is $TP, which is not expanded here; write its value"),
        ("vllm serve m --max-model-len=$(cat n)", "--max-model-len is $(cat n), which is not expanded here"),
        ("sglang serve m --kv-cache-dtype ${KV}", "--kv-cache-dtype is ${KV}, which is not expanded"),
        ("vllm serve m $ARGS", "--from-command: $ARGS is not expanded here; write the flags that it stands for"),
        ("vllm serve m --enforce-eager ${ARGS:-}", "${ARGS:-} is not expanded here"),
        ('ARGS=(-tp 8)\nvllm serve m "${ARGS[@]}"', "${ARGS[@]} is not expanded here"),
        ('vllm serve "$@"', "$@ is not expanded here"),
        ("sglang serve --model-path m --host 0.0.0.0 $*", "$* is not expanded here"),
        ("vllm serve m --served-model-name a ${@:2}", "${@:2} is not expanded here"),
        ("vllm serve m `cat flags`", "`cat flags` is not expanded here"),
        ("vllm serve m --$FLAG 2", "--$FLAG 2 is not expanded here"),
        ("echo \x1b[31m; vllm serve m", "holds control characters"),
        ("#" * (LONGEST_COMMAND + 1), "serve it.sh has 65,537 characters; at most 65,536 are read"),
        ("vllm serve m" + " x" * 5000, "has 5,003 words"),
    ],
    ids=lambda value: value[:30],
)
def test_scripts_that_are_refused(script: Path, text: str, says: str) -> None:
    script.write_text(text)
    with pytest.raises(InputError) as refused:
        read_command(str(script))
    assert says in str(refused.value)


def test_a_script_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.sh", tmp_path):
        (tmp_path / "folder.sh").mkdir(exist_ok=True)
        with pytest.raises(InputError, match="cannot be read"):
            read_command(str(path / "folder.sh" if path == tmp_path else path))


def test_nothing_is_run(script: Path, tmp_path: Path) -> None:
    script.write_text(f"touch {tmp_path}/gone\nvllm serve m --chat-template $(touch {tmp_path}/gone)\n")
    read_command(str(script))
    assert list(tmp_path.iterdir()) == [script]


@pytest.mark.skipif(shutil.which("bash") is None, reason="compared with bash")
@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from(["say a", "say 'b;c'", 'say "d|e"', "say f\\;g", "say h\\\n i", "say j # k; l", "", "say m#n"]),
        max_size=6,
    ),
    st.sampled_from(["\n", "; ", " && ", "\n\n", " & "]),
)
def test_bash_sees_the_same_commands(commands: list[str], between: str) -> None:
    """`say` prints its words; bash runs what is kept, here with nothing that fails or runs ahead."""
    if between != "\n":
        commands = [each for each in commands if each and "#" not in each]
    text = between.join(commands)
    said = 'say() { printf "%s\\n" "$*"; }\n'
    whole = subprocess.run(["bash", "-c", said + text], capture_output=True, text=True, check=True).stdout
    each = "\n".join(found.text for found in statements(text))
    again = subprocess.run(["bash", "-c", said + each], capture_output=True, text=True, check=True).stdout
    assert sorted(again.splitlines()) == sorted(whole.splitlines())


@given(st.text(alphabet="a b;|&<>'\"`$(){}#\\\n\t-=EOF", max_size=200))
def test_any_script_is_cut_or_refused(text: str) -> None:
    found = list(statements(text + "\nvllm serve m\n"))
    lines = [each.line for each in found]
    assert lines == sorted(lines)
    assert all(each.text.strip() for each in found)
    with contextlib.suppress(InputError):
        read_command(text)


@pytest.mark.parametrize("piece", ["$(", "`", '"', "'", "\\", "<<a\n", "$(a", "((", "a;", "#", '"\\"', "$(()"])
def test_long_scripts_take_no_time(script: Path, piece: str) -> None:
    script.write_text((piece * LONGEST_COMMAND)[:LONGEST_COMMAND])
    with pytest.raises(InputError):
        read_command(str(script))
