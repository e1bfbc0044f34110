"""Rewrites the outputs that README.md and docs/ show: ``make docs``. Read the diff before committing it."""

import re

from tests.test_docs import DOCUMENTS, FENCE, ROOT, commands, run


def refreshed(block: re.Match[str]) -> str:
    """A checked console block with each command's present output."""
    if "no-check" in block["flags"].split():
        return block[0]
    parts = []
    for shown in commands(block[0]):
        output = run(shown.command, ROOT).stdout if shown.runs else "\n".join(shown.output)
        parts.append("\n".join([f"$ {shown.command}", *(line.rstrip() for line in output.strip("\n").splitlines())]))
    return "```console" + block["flags"] + "\n" + "\n\n".join(parts) + "\n```"


if __name__ == "__main__":
    for path in DOCUMENTS:
        path.write_text(FENCE.sub(refreshed, path.read_text()))
