"""The end of a run: scores of the test set, their audit, the report, and the mark that all of it is there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from classmargin._atomic import atomic_path
from classmargin._distributed import rank
from classmargin._types import Batch
from classmargin.evaluation.audit import Audit, audit
from classmargin.methods.base import Method
from classmargin.training.evaluate import Place, collect_outputs
from classmargin.training.recorder import say
from classmargin.training.run_folder import RunFolder, write_json

Arrays = dict[str, np.ndarray[Any, Any]]


def predict_arrays(
    network: nn.Module, method: Method, batches: Iterable[Batch], class_names: tuple[str, ...], place: Place
) -> Arrays:
    """Return everything a prediction file holds: logits, labels, features, ids, head weights, class names."""
    arrays = collect_outputs(network, method, batches, place)
    weight = getattr(network, "classifier_weight", None)
    if isinstance(weight, Tensor):
        arrays["classifier_weight"] = weight.detach().float().cpu().numpy()
    arrays["class_names"] = np.array(class_names, dtype=np.str_)
    return arrays


def write_predictions(path: Path, arrays: Arrays) -> None:
    """Write a prediction file atomically; it holds plain arrays, nothing pickled."""
    with atomic_path(path, durable=True) as temporary:
        np.savez(temporary, allow_pickle=False, **arrays)


def audit_arrays(arrays: Arrays, **options: Any) -> Audit:
    """Audit what :func:`predict_arrays` returned."""
    given: dict[str, Any] = {
        name: values for name, values in arrays.items() if name not in ("labels", "class_names")
    }
    names = [str(name) for name in arrays["class_names"]]
    return audit(arrays["labels"], class_names=names, **given, **options)


def finish_run(
    folder: RunFolder, arrays: Arrays, *, report: bool, summary: dict[str, Any], norm_order: float = 2.0
) -> Audit | None:
    """Write predictions, audit and report of a run and mark it as done; only one process writes.

    A missing report package costs the report, with a line that names the extra, and nothing else.
    """
    if rank() != 0:
        return None
    write_predictions(folder.predictions_file, arrays)
    result = audit_arrays(arrays, norm_order=norm_order)
    write_json(folder.audit_file, result.to_dict(), durable=True)
    if report:
        try:
            result.to_html(folder.report_file)
        except ImportError as error:
            say(f"no report.html: {error}")
    names = ("overall", "easy", "medium", "hard", "worst", "gap")
    folder.mark_done({**summary, "test": {name: getattr(result, name) for name in names}})
    return result
