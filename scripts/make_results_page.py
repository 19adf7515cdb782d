"""Writes the pages of results from the records in ``results/``: ``python scripts/make_results_page.py``.

A record is the small JSON that ``classmargin reproduce`` writes: scores of every run, changes against the first row with
their intervals, settings, versions. ``choice_*.json`` hold what was chosen on validation samples, with the command.
``results/`` has those that the present version makes, ``results/history/`` those of objectives that are gone, with what was
found then (``findings.md``); ``results/benchmarks/`` what ``make bench`` wrote.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from classmargin.recipes.record_pages import render_records

ROOT = Path(__file__).resolve().parents[1]
HEAD = (
    "# Results\n\nGenerated from the records in `results/` by `python scripts/make_results_page.py`. What they mean is on the page\n"
    "[Evidence](evidence.md); records of earlier versions are on the page [History](history.md).\n\n"
)
HISTORY_HEAD = (
    "# History\n\nWhat versions 0.1 to 0.4 measured, kept for the record. **Every row “MR²” here is an objective that version\n"
    "0.5 no longer has**, so none of these numbers speaks for\n"
    "the present one. Their commands need the version that the record names:\n\n"
    "| version | what “MR²” without settings was |\n|---|---|\n"
    "| 0.1 | `plain`: pairs of the batch, temperature = largest variance of the features, λ = 0.1, margins from r² |\n"
    "| 0.2 | eight remembered classmates, λ = 1 after a warm-up of 200 steps, margins from the relative spread |\n"
    "| 0.3, 0.4 | classmates in closed form, λ = 3 after the same warm-up, weighed by confidence, margins from the relative spread |\n\n"
    "Records of image networks were made before the memory format of a run was fixed by a rule, so their rows may mix two numerics;\n"
    "`ldam` and `ldam-drw`, which are the same computation there, stand 0.8 points apart. Rows of cross-entropy and of the other methods\n"
    "hold as they are. All methods had the learning rate and weight decay of cross-entropy, not a search budget of their own.\n\n"
)
NO_HARM_HEAD = """# Does it ever do harm?

Networks with and without normalisation, narrow, deep and residual; raw and normalised inputs; four optimisers;
batches of 8 to 512; 2 to 150 classes; short schedules. Accuracy of cross-entropy overall / on the hardest third of
the classes, and the changes of three other losses in points, the interval being that of the hard third (95 %, over
{seeds} seeds and the test samples). A loss *harms* where it is more than {tolerated} points below cross-entropy,
overall or on the hard third, and the interval excludes zero; it has *collapsed* where the variance of the features
ended below a thousandth of its peak. These trainings are short and their hard thirds noisy: the table shows that
nothing is ruined, not who is better.

Made by `{command}`, where the folder holds the data files that the benchmark names; record
`results/benchmarks/no_harm.json`.
"""
COLUMNS = ("overall", "easy", "medium", "hard", "worst")


def results_page() -> str:
    """Return the text of ``docs/results.md``."""
    return HEAD + _records(ROOT / "results")


def history_page() -> str:
    """Return the text of ``docs/history.md``."""
    folder = ROOT / "results" / "history"
    findings = (folder / "findings.md").read_text(encoding="utf-8").strip()
    return HISTORY_HEAD + findings + "\n\n# Records { #records }\n\n" + _records(folder)


def no_harm_page() -> str:
    """Return the text of ``docs/no_harm.md``."""
    record = json.loads((ROOT / "results" / "benchmarks" / "no_harm.json").read_text(encoding="utf-8"))
    result = record["result"]
    lines = [
        NO_HARM_HEAD.format(command=record["command"], tolerated=result["tolerated_points"], seeds=result["seeds"]),
        "| training | cross-entropy | label smoothing alone | recommended | `paper` |",
        "|---|---:|---|---|---|",
    ]
    for row in result["rows"]:
        base = row["cross-entropy"]
        cells = [_change(row[name]) for name in ("smoothing", "recommended", "paper")]
        lines.append(
            f"| {row['combination']} | {base['overall']:.1f} / {base['hard']:.1f} | " + " | ".join(cells) + " |"
        )
    counts = [
        f"{name}: harm in {sum(row[key]['harms'] for row in result['rows'])}, collapse in "
        f"{sum(row[key]['collapsed'] for row in result['rows'])} of {len(result['rows'])}"
        for name, key in (
            ("label smoothing", "smoothing"),
            ("recommended", "recommended"),
            ("`paper`", "paper"),
        )
    ]
    return "\n".join([*lines, "", "; ".join(counts) + ".", ""])


def reviewers_page() -> str:
    """Return the text of ``docs/reviewers.md``: the answers, and the table they quote."""
    record = json.loads((ROOT / "results" / "benchmarks" / "reviewer_questions.json").read_text(encoding="utf-8"))
    lines = [
        (ROOT / "results" / "benchmarks" / "reviewer_answers.md").read_text(encoding="utf-8").strip(),
        "",
        "## The table",
        "",
        f"Embedded Fashion-MNIST at 14 pixels, small network, 15 epochs, {record['result']['rows'][0]['seeds']} seeds,",
        "a fifth of each training class held out. Made by",
        f"`{record['command']}`; record `results/benchmarks/reviewer_questions.json`. Changes in points against cross-entropy,",
        "with standard errors; geometry of the training features after the last epoch, mean over seeds.",
        "",
        "| objective | overall | hard third | γ from r² | variation of ‖μ_k‖ | spread / variance | variance | SD of overall over seeds |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for row in record["result"]["rows"]:
        shape = row["geometry"]
        lines.append(
            f"| {row['candidate']} | {_with_error(row, 'overall')} | {_with_error(row, 'hard')} | "
            f"{shape['margin_low']:.2f} to {shape['margin_high']:.2f} | {100 * shape['mean_norm_variation']:.0f} % | "
            f"{shape['spread_share']:.2f} | {shape['variance']:.1f} | {row['deviation_over_seeds']:.1f} |"
        )
    return "\n".join([*lines, ""])


def why_page() -> str:
    """Return the text of ``docs/why.md``: what was concluded, and the table behind it."""
    folder = ROOT / "results" / "benchmarks"
    record = json.loads((folder / "why_smoothing.json").read_text(encoding="utf-8"))
    rows = record["result"]["rows"]
    lines = [
        (folder / "why.md").read_text(encoding="utf-8").strip(),
        "",
        "## The table",
        "",
        (
            "Banking77 through MiniLM, one hidden layer, learning rate and weight decay tuned for cross-entropy, "
            f"{rows[0]['seeds']} seeds,"
        ),
        f"a fifth of each training class held out. Made by `{record['command']}`, where `$CLASSMARGIN_DATA` holds",
        "`banking77_minilm.npz`; record `results/benchmarks/why_smoothing.json`. Changes in points with standard errors;",
        "calibration error before and after one temperature, negative log-likelihood after it.",
        "",
        (
            "| objective | overall | hard third | variance | spread / variance | confidence | calibration error | temperature | "
            "likelihood after |"
        ),
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['candidate']} | {_with_error(row, 'overall')} | {_with_error(row, 'hard')} | {row['variance']:.1f} | "
        f"{row['spread_share']:.2f} | {row['confidence']:.2f} | {row['error']:.3f}, {row['error_after']:.3f} | "
        f"{row['temperature']:.2f} | {row['likelihood_after']:.3f} |"
        for row in rows
    ]
    return "\n".join([*lines, ""])


def _with_error(row: dict[str, Any], part: str) -> str:
    return f"{row[part]:.1f}, {row[part + '_change']:+.1f} ± {row[part + '_error']:.1f}"


def _change(entry: dict[str, Any]) -> str:
    low, high = entry["hard_interval"]
    words = [word for word in ("harms", "collapsed") if entry[word]]
    warned = sum(at is not None for at in entry["warned_at"])
    words += [f"warned in {warned} of {len(entry['warned_at'])} runs"] if warned else []
    text = f"{entry['overall']:+.1f} / {entry['hard']:+.1f} ({low:+.1f} to {high:+.1f})"
    return text + (f" **{', '.join(words)}**" if words else "")


def _records(folder: Path) -> str:
    choices = "\n".join(
        choice_table(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("choice_*.json"))
    )
    records = [path for path in sorted(folder.glob("*.json")) if not path.name.startswith("choice_")]
    chosen = "## Chosen on validation samples\n\n" + choices + "\n" if choices else ""
    return (chosen + (render_records(records) if records else "")).rstrip() + "\n"


def choice_table(choice: dict[str, Any]) -> str:
    """Return one set of candidates as a table, with the command that made it."""
    lines = [f"### {choice['title']}", "", choice["note"], "", "```console", choice["command"], "```", ""]
    columns = choice.get("columns") or COLUMNS
    lines += ["| candidate | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for row in choice["rows"]:
        values = " | ".join(row[name] if isinstance(row[name], str) else f"{100 * row[name]:.1f}" for name in columns)
        lines.append(f"| {row['candidate']} | {values} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for page in (results_page, history_page, no_harm_page, reviewers_page, why_page):
        name = page.__name__.removesuffix("_page") + ".md"
        (ROOT / "docs" / name).write_text(page(), encoding="utf-8")
