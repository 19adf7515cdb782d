"""timm and open_clip import torchvision, whose wheel may be unusable beside a CPU build of torch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

_OPERATORS = ("nms", "qnms")  # what torchvision describes in Python and defines in its compiled part
_kept_alive: list[torch.library.Library] = []


def tolerate_broken_torchvision() -> bool:
    """Declare the operators of torchvision's compiled part if that part cannot be loaded; return whether they were.

    The compiled part of the wheel on PyPI wants CUDA libraries. Where they are missing, torchvision leaves it out, and then
    fails because it describes operators that were never declared. Transforms and models need none of them. Where
    torchvision is absent, already imported or whole, nothing is done.
    """
    if "torchvision" in sys.modules or _kept_alive or sys.platform != "linux":
        return False
    found = importlib.util.find_spec("torchvision")
    compiled = (
        None if found is None or not found.origin else next(Path(found.origin).parent.glob("_C*.so"), None)
    )
    if compiled is None:
        return False
    try:
        torch.ops.load_library(str(compiled))  # type: ignore[no-untyped-call]
    except OSError:
        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in _OPERATORS:
            schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)  # type: ignore[no-untyped-call]
        _kept_alive.append(library)
        return True
    return False
