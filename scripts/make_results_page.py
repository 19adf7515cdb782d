"""Writes ``docs/results.md`` from the records in ``results/``: ``python scripts/make_results_page.py``.

A record is the small JSON that ``classmargin reproduce`` writes: scores of every run, changes against the first row with
their intervals, settings, versions. ``results/choice_*.json`` hold what was chosen on validation samples, with the command.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from classmargin.recipes.reproduce.render import render_records

ROOT = Path(__file__).resolve().parents[1]
HEAD = (
    "# Results\n\nGenerated from the records in `results/` by `python scripts/make_results_page.py`. What they mean is on the page\n"
    "[Evidence](evidence.md).\n\n"
    "In records of classmargin 0.1.0 a row “MR²” without settings has the preset that is now called `plain` (λ = 0.1, margins from\n"
    "r², no warm-up): to make them again, add `--mr2-preset plain` or `--set method.preset=plain` to their commands. In records of\n"
    "0.2.0 it has λ = 1 and remembered classmates: add `--set method.representation_weight=1 --set method.positives=memory\n"
    "--set method.memory_size=8 --set method.weigh_by_confidence=false`.\n\n"
)
COLUMNS = ("overall", "easy", "medium", "hard", "worst")


def results_page() -> str:
    """Return the text of ``docs/results.md``."""
    folder = ROOT / "results"
    choices = "\n".join(
        choice_table(json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(folder.glob("choice_*.json"))
    )
    records = [path for path in sorted(folder.glob("*.json")) if not path.name.startswith("choice_")]
    pages = render_records(records) if records else ""
    return HEAD + "## Chosen on validation samples\n\n" + choices + "\n" + pages.rstrip() + "\n"


def choice_table(choice: dict[str, Any]) -> str:
    """Return one set of candidates as a table, with the command that made it."""
    lines = [f"### {choice['title']}", "", choice["note"], "", "```console", choice["command"], "```", ""]
    lines += ["| candidate | " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * len(COLUMNS)]
    for row in choice["rows"]:
        values = " | ".join(f"{100 * row[name]:.1f}" for name in COLUMNS)
        lines.append(f"| {row['candidate']} | {values} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "results.md").write_text(results_page(), encoding="utf-8")
