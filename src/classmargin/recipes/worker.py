"""A process that trains one run after the other: ``python -m classmargin.recipes.worker``.

Started by :mod:`classmargin.recipes.run_pool`. One JSON line in per run (``{"folder": …, "config": tables,
"watch_spread": false}``), one JSON line out when it is finished. Importing the libraries takes as long as a short run, so a worker does
it once. If its parent vanishes it saves and ends, so that nothing trains on unseen.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import IO, Any


def main() -> int:
    """Serve runs until the input ends."""
    # Replies go through a private copy of standard output: a library that prints must not break the protocol.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    for line in sys.stdin:
        _reply(replies, _serve(json.loads(line)))
    return 0


def _serve(task: dict[str, Any]) -> dict[str, Any]:
    from classmargin.recipes.reproduce.spread_log import SpreadLog
    from classmargin.recipes.train_run import train
    from classmargin.training.config_reader import build
    from classmargin.training.errors import StoppedError

    try:
        observers = [SpreadLog(task["folder"])] if task.get("watch_spread") else []
        train(build(task["config"]), task["folder"], resume=True, show=False, observers=observers)
    except StoppedError as stopped:
        sys.exit(stopped.exit_code)
    except Exception as error:  # the parent decides what a failed run means; the worker goes on with the next
        return {"folder": task["folder"], "error": f"{type(error).__name__}: {error}"}
    return {"folder": task["folder"], "error": None}


def _reply(replies: IO[str], record: dict[str, Any]) -> None:
    replies.write(json.dumps(record) + "\n")
    replies.flush()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
