"""``make demo``: ERM against MR² on the embedded data set, three seeds each, in a few minutes on two cores.

Nothing is downloaded. An interrupted demo goes on where it stopped; a finished one shows its table again.
Settings were chosen on the validation samples of ERM alone, so that the baseline gets the benefit.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from classmargin._printable import printable
from classmargin.recipes.compare_methods import compare_methods, plan_runs, write_comparison
from classmargin.recipes.method_table import tables_of, verdict_of
from classmargin.recipes.run_options import gather_config
from classmargin.training.errors import StoppedError

METHODS = ("erm", "mr2")
SEEDS = 3
JOBS = 2
SETTINGS: dict[str, dict[str, object]] = {
    "data": {"name": "fashion-mnist-mini", "augmentation": "none"},
    "backbone": {"name": "small-cnn"},
    "loop": {"epochs": 15, "batch_size": 64},
    "optimizer": {"learning_rate": 0.1, "weight_decay": 5e-4},
    "schedule": {"warmup_epochs": 1.0},
    "machine": {"memory_format": "channels_last", "accelerator": "cpu"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo in ``runs/demo`` (or the folder given) and return the exit code."""
    from classmargin.report.text import print_report

    words = list(sys.argv[1:] if arguments is None else arguments)
    folder = Path(words[0] if words else os.environ.get("CLASSMARGIN_DEMO", "runs/demo"))
    begin = time.monotonic()
    plan = plan_runs(
        gather_config(flags=SETTINGS), METHODS, SEEDS, folder, {"mr2": {"preset": "recommended"}}
    )
    _say(f"ERM and MR² on fashion-mnist-mini, {SEEDS} seeds each, {JOBS} runs side by side; folder {folder}")
    try:
        comparison = compare_methods(plan, jobs=JOBS)
    except (KeyboardInterrupt, StoppedError) as stop:
        _say("interrupted; run it again to go on from here")
        return getattr(stop, "exit_code", 130)
    written = write_comparison(comparison, folder, title="ERM against MR² on fashion-mnist-mini")
    print_report(verdict_of(comparison), tables_of(comparison))
    _say(f"{time.monotonic() - begin:.0f} s; the report is {written[-1]}")
    for title, error in comparison.failed.items():
        _say(f"{title} failed: {error}")
    return 3 if comparison.failed else 0


def _say(line: str) -> None:
    sys.stderr.write(f"{printable(line)}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
