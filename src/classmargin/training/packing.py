"""Nested state (dictionaries, lists, numbers, tensors) as named tensors plus JSON: nothing is ever pickled.

``pack`` puts every tensor aside under a name and leaves a reference in its place; ``unpack`` puts them back.
Optimiser states have integer keys and JSON has none, so dictionaries with other than text keys become lists
of pairs. Numbers come back bit for bit (JSON writes the shortest text that reads back as the same float).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_TENSOR, _PAIRS, _TUPLE = "__tensor__", "__pairs__", "__tuple__"


def pack(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """Split ``tree`` into tensors by name and a JSON-able structure.

    Raises:
        TypeError: The tree holds something other than numbers, text, None, tensors and nests of these.

    Example:
        >>> tensors, structure = pack({"a": torch.ones(2), "step": 3})
        >>> structure
        {'a': {'__tensor__': 'a'}, 'step': 3}
        >>> unpack(tensors, structure)["step"]
        3
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _pack(tree, "", tensors)


def _pack(tree: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        name = path or "value"
        tensors[name] = _own_memory(tree)
        return {_TENSOR: name}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    if isinstance(tree, Mapping):
        inner = [(key, _pack(value, _join(path, key), tensors)) for key, value in tree.items()]
        # Text keys stay readable; one that looks like our marks would be misread, so it is paired.
        if all(isinstance(key, str) and not key.startswith("__") for key, _ in inner):
            return dict(inner)
        return {_PAIRS: [[key, value] for key, value in inner]}
    if isinstance(tree, (list, tuple)):
        items = [_pack(value, _join(path, position), tensors) for position, value in enumerate(tree)]
        return {_TUPLE: items} if isinstance(tree, tuple) else items
    raise TypeError(
        f"state at {path or 'the top'!r} must be numbers, text or tensors, got {type(tree).__name__}"
    )


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _own_memory(tensor: Tensor) -> Tensor:
    """Return a contiguous CPU copy: the file format refuses tensors that share memory."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def unpack(tensors: Mapping[str, Tensor], structure: Any) -> Any:
    """Rebuild the tree that :func:`pack` took apart."""
    if isinstance(structure, list):
        return [unpack(tensors, item) for item in structure]
    if not isinstance(structure, dict):
        return structure
    if set(structure) == {_TENSOR}:
        return tensors[structure[_TENSOR]]
    if set(structure) == {_PAIRS}:
        return {key: unpack(tensors, value) for key, value in structure[_PAIRS]}
    if set(structure) == {_TUPLE}:
        return tuple(unpack(tensors, item) for item in structure[_TUPLE])
    return {key: unpack(tensors, value) for key, value in structure.items()}


def same(left: Any, right: Any) -> bool:
    """Return whether two trees are equal bit for bit (tensors: shape, type and every element)."""
    tensors_left, structure_left = pack(left)
    tensors_right, structure_right = pack(right)
    if structure_left != structure_right:
        return False
    return all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))
        for a, b in zip(tensors_left.values(), tensors_right.values(), strict=True)
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor
