"""Penultimate features of any network, taken from its one ordinary forward pass.

A forward hook on the classification head keeps its input, graph included; :meth:`FeatureCapture.criterion` hands it to
the loss once it is proven that the head made the loss's logits in that very call. The two-line change of a training
script::

    captured = classmargin.capture_features(model)   # new
    criterion = captured.criterion()                 # instead of nn.CrossEntropyLoss()

The same two lines serve under ``DistributedDataParallel`` and ``torch.compile``, with the wrapped or the bare model; with
``torch.compile`` they must come before the first call of the compiled model, because a traced graph sees no later hooks.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from classmargin._checks import check_floating, check_int, did_you_mean
from classmargin._types import LossTerms
from classmargin.mr2 import MR2Loss

# What may lie between the head's output and the logits: operations that leave row i in row i. Anything else (an index, a
# permutation, another layer) ends the search, because features and logits might no longer belong together.
_ROW_WISE = re.compile(
    "(Abs|Add|Alias|Clamp|ClampMax|ClampMin|Clone|_DDPSink|Div|Exp|Log|LogSoftmax|MaskedFill|Mul|NanToNum|Neg|Pow|ReshapeAlias"
    "|Rsub|Select|Sigmoid|Slice|Softmax|Softplus|Squeeze|Sub|Tanh|ToCopy|UnsafeView|Unsqueeze|View|Where)Backward[0-9]*"
)
_MOST_NODES = 32  # of such operations; real models have three or four


class _Slot:
    """The hook itself: holds input and output of the head's last call; a copy of the model gets an empty slot."""

    def __init__(self) -> None:
        self.features: Tensor | None = None
        self.output: Any = None
        self.edge: tuple[Any, int] | None = None  # of the output in the autograd graph
        self.with_gradients = True
        self.equal_siblings: set[tuple[int, int]] = set()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        # A traced hook may do little more than assign; what it leaves out is read from the output later.
        # The edge is taken now, because an operation in place would give the same tensor another one.
        self.edge = None if torch.compiler.is_compiling() else _edge(output)
        self.features = args[0] if args else next(iter(kwargs.values()))
        self.output = output
        self.with_gradients = torch.is_grad_enabled()

    def clear(self) -> None:
        self.features = self.output = self.edge = None

    def doubt(self, logits: Tensor, compared: bool) -> str:
        """Return why ``logits`` may not be the output of the last call, "" if they are or if values were compared."""
        if logits.requires_grad and not self.with_gradients:
            return (
                "a forward pass without gradients (torch.no_grad(), or a reentrant checkpoint around the head) is the last "
                "one, and the logits have gradients"
            )
        if compared or self._made(logits):
            return ""
        return (
            "the logits are not the output of its last call: an earlier call or another layer made them, or an operation that may "
            "reorder or mix rows came in between"
        )

    def _made(self, logits: Tensor) -> bool:
        if not isinstance(self.output, Tensor):
            return False
        edge = self.edge or _edge(self.output)
        if _descends(logits, self.output, edge):
            return True
        node = logits.grad_fn
        if node is None or node is not edge[0] or "Compiled" not in node.name():
            return False
        # One compiled graph returned both, e.g. the output in half precision and the logits cast from it, and autograd sees
        # no way between them. Their positions tell which is which in all later steps, so values are compared only once.
        positions = edge[1], logits.output_nr
        if positions not in self.equal_siblings and _nearly_equal(self.output, logits):
            self.equal_siblings.add(positions)
        return positions in self.equal_siblings

    def __reduce__(self) -> tuple[type[_Slot], tuple[()]]:
        return _Slot, ()


def _edge(output: Any) -> tuple[Any, int]:
    return (output.grad_fn, output.output_nr) if isinstance(output, Tensor) else (None, 0)


def _descends(logits: Tensor, output: Tensor, edge: tuple[Any, int]) -> bool:
    """Whether ``logits`` are ``output`` itself, a view of it, or follow from it row by row."""
    if logits is output:
        return True
    if edge[0] is not None and logits.grad_fn is not None:
        return _reaches(_edge(logits), edge)
    # Without a graph (frozen networks): the same memory, with the rows where they were.
    address = output.untyped_storage().data_ptr()
    same_memory = address != 0 and logits.untyped_storage().data_ptr() == address
    return same_memory and logits.dim() > 0 and logits.stride(0) == output.stride(0)


def _reaches(start: tuple[Any, int], goal: tuple[Any, int]) -> bool:
    """Whether all that ``start`` was computed from is ``goal`` and parameters, by row-wise operations."""
    waiting, found = [start], False
    for _ in range(_MOST_NODES):
        if not waiting:
            break
        node, number = waiting.pop()
        if node is goal[0] and number == goal[1]:
            found = True
        elif not node.name().endswith("AccumulateGrad"):
            if not _ROW_WISE.fullmatch(node.name()):
                return False
            waiting.extend(edge for edge in node.next_functions if edge[0] is not None)
    return found and not waiting


def _nearly_equal(output: Tensor, logits: Tensor) -> bool:
    if output.shape != logits.shape:
        return False
    ours, theirs = output.detach().float(), logits.detach().float()
    precision = max(torch.finfo(tensor.dtype).eps for tensor in (output, logits))
    return bool((ours - theirs).abs().max() <= 2 * precision * ours.abs().max()) if ours.numel() else True


class FeatureCapture:
    """What :func:`capture_features` returns: the head, ``layer``, is called ``layer_name`` in the (unwrapped) model."""

    def __init__(self, layer_name: str, layer: nn.Module) -> None:
        self.layer_name = layer_name
        self.layer = layer
        self._slot = _Slot()
        self._handle = layer.register_forward_hook(self._slot, with_kwargs=True)

    @property
    def features(self) -> Tensor:
        """Input of the head in the last forward pass, ``[B, d]``, with its graph; an error if there was none since :meth:`clear`."""
        features = self._slot.features
        if features is None:
            raise RuntimeError(
                f"no features were captured: layer {self.layer_name!r} has not been called since capture_features() or the "
                "last loss; capture before the first call of a compiled model; capture.close() ends it"
            )
        return features.flatten(1) if features.dim() == 4 and features.shape[2:] == (1, 1) else features

    @property
    def feature_dim(self) -> int | None:
        """``d``, where the head says it."""
        return getattr(self.layer, "in_features", None)

    @property
    def num_classes(self) -> int | None:
        """``K``, where the head says it."""
        return getattr(self.layer, "out_features", None)

    def clear(self) -> None:
        """Let go of the features (and of the graph behind them)."""
        self._slot.clear()

    def take(self, logits: Tensor | None = None) -> Tensor:
        """Return the features of the last forward pass and let go of them; an error if ``logits`` are not of it.

        Logits ``[B, K]`` may follow from the head's output by row-wise operations (casts, slices, a temperature, a
        bias). Where the head runs over all tokens and the model keeps the scores of one (GPT-like), they tell whose
        features are returned.
        """
        try:
            features = self.features
            if logits is None:
                return features
            is_token_head = features.dim() == 3 and logits.dim() == 2
            if is_token_head:
                features = features_of_chosen_token(features, self._slot.output.detach(), logits)
            if features.dim() != 2 or features.shape[:1] != logits.shape[:1]:
                raise ValueError(
                    f"captured features must have shape ({logits.shape[0]}, d) with logits {tuple(logits.shape)}, "
                    f"got {tuple(features.shape)} from layer {self.layer_name!r}; name the layer that makes the logits"
                )
            doubt = self._slot.doubt(logits, compared=is_token_head)
            if doubt:
                raise ValueError(
                    f"the captured features of layer {self.layer_name!r} may not belong to these logits: {doubt}. Call "
                    "the loss right after the forward pass that made them, name the layer that makes them, or pass the features, "
                    "criterion(logits, labels, features=...)"
                )
            return features
        finally:
            self.clear()

    def criterion(
        self, num_classes: int | None = None, *, preset: str = "recommended", accumulate: int = 1, **options: Any
    ) -> CapturedMR2Loss:
        """Return the MR² loss of this model as ``criterion(logits, labels)``.

        Args:
            num_classes: ``K``; None takes it from the head.
            preset: Named hyper-parameters, see :meth:`classmargin.MR2Loss.preset`.
            accumulate: Micro-batches per optimiser step; the statistics move with the first of them.
            **options: Arguments of :class:`classmargin.MR2Loss` that win over the preset.
        """
        if num_classes is not None:
            check_int("num_classes", num_classes, minimum=1)
        elif (num_classes := self.num_classes) is None:
            raise ValueError(f"num_classes must be given: layer {self.layer_name!r} does not tell it")
        loss = MR2Loss.preset(preset, num_classes, self.feature_dim, accumulate=accumulate, **options)
        return CapturedMR2Loss(self, loss)

    def close(self) -> None:
        """Take the hook off the model."""
        self._handle.remove()
        self.clear()

    def __enter__(self) -> FeatureCapture:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class CapturedMR2Loss(nn.Module):
    """``criterion(logits, labels)`` with the features of the last forward pass.

    Made by :meth:`FeatureCapture.criterion`. In training it updates the class statistics, once per call. Under ``criterion.eval()`` or
    ``torch.no_grad()`` it is the plain cross-entropy of the logits, which needs no features, so early stopping and the choice of a
    checkpoint go as with ``nn.CrossEntropyLoss``. Its ``state_dict`` holds the statistics: save it with the model's to resume exactly.

    Args:
        capture: Where features come from.
        loss: The loss itself (margins, statistics, collapse sign).
        smooth_probabilities: Whether label smoothing also applies to labels that are probabilities.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
        >>> criterion = capture_features(model).criterion()
        >>> value = criterion(model(torch.randn(6, 8)), torch.tensor([0, 1, 2, 0, 1, 2]))
        >>> value.backward()
        >>> int(criterion.loss.statistics.updates)
        1
    """

    # nn.Module leaves calls untyped; with this, type checkers know that criterion(logits, labels) is a tensor.
    __call__: Callable[..., Tensor]

    def __init__(self, capture: FeatureCapture, loss: MR2Loss, *, smooth_probabilities: bool = True) -> None:
        super().__init__()
        self.capture, self.loss, self.smooth_probabilities = capture, loss, smooth_probabilities

    def forward(
        self, logits: Tensor, labels: Tensor, *, features: Tensor | None = None, update_statistics: bool | None = None
    ) -> Tensor:
        """Return the MR² loss in training and the plain cross-entropy in evaluation, scalar; arguments as in :meth:`terms`."""
        if self.training and torch.is_grad_enabled():
            return self.terms(logits, labels, features=features, update_statistics=update_statistics).total
        self.capture.clear()
        with self._loss_for(logits, labels) as loss:
            return loss.cross_entropy(logits, labels)

    def terms(
        self, logits: Tensor, labels: Tensor, *, features: Tensor | None = None, update_statistics: bool | None = None
    ) -> LossTerms:
        """Return the MR² total and its parts, in training and in evaluation.

        Args:
            logits: Output of the model ``[B, K]``.
            labels: Classes ``[B]`` or class probabilities ``[B, K]``.
            features: Input of the head ``[B, d]`` where it is at hand; None takes what was captured.
            update_statistics: As in :meth:`classmargin.MR2Loss.terms`.
        """
        check_floating("logits", logits, dim=2)
        if features is None:
            outputs, columns = self.capture.num_classes, logits.shape[-1]
            if outputs not in (None, columns) and columns != self.loss.num_classes:
                # The last nn.Linear that a model declares need not be its head.
                name = f"layer {self.capture.layer_name!r} ({outputs} outputs)"
                raise ValueError(
                    f"{name} was captured as the head but the logits have {columns} columns; give another layer"
                )
            features = self.capture.take(logits)
        else:
            self.capture.clear()
        with self._loss_for(logits, labels) as loss:
            return loss.terms(logits, labels, features, update_statistics=update_statistics)

    @contextlib.contextmanager
    def _loss_for(self, logits: Tensor, labels: Tensor) -> Iterator[MR2Loss]:
        if next(self.loss.buffers()).device != logits.device:
            self.loss.to(logits.device)  # scripts seldom move their criterion
        before = self.loss.label_smoothing
        if labels.is_floating_point() and not self.smooth_probabilities:
            self.loss.label_smoothing = 0.0
        try:
            yield self.loss
        finally:
            self.loss.label_smoothing = before


def capture_features(model: nn.Module, layer: str | nn.Module | None = None) -> FeatureCapture:
    """Capture the penultimate features of ``model`` from its ordinary forward pass.

    Args:
        model: Any network; wrappers of ``DistributedDataParallel`` and ``torch.compile`` are looked through.
        layer: The classification head, whose *input* is captured: its name as in ``model.named_modules()``, the module
            itself, or None for the last ``nn.Linear``.

    Returns:
        A capture of the last forward pass: read ``.features`` after it, or let :meth:`FeatureCapture.criterion` read them.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
        >>> captured = capture_features(model)
        >>> logits = model(torch.zeros(2, 8))
        >>> captured.layer_name, captured.features.shape
        ('2', torch.Size([2, 4]))
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    return FeatureCapture(*find_head(unwrap(model), layer))


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside the wrappers of data-parallel training and ``torch.compile``."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    while True:
        compiled = getattr(model, "_orig_mod", None)  # torch.compile's wrapper; it has no public name for it
        if isinstance(compiled, nn.Module):
            model = compiled
        elif isinstance(model, (DistributedDataParallel, DataParallel)):
            model = model.module
        else:
            return model


def find_head(model: nn.Module, layer: str | nn.Module | None) -> tuple[str, nn.Module]:
    """Return name and module of the head, as :func:`capture_features` describes."""
    # With duplicates: a layer that two names share is found under both, and is the last one if its last name is.
    modules = dict(model.named_modules(remove_duplicate=False))
    if layer is None:
        linear = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
        if not linear:
            raise ValueError(
                f"model {type(model).__name__} has no nn.Linear; give layer=, the name of its classification head"
            )
        # PEFT keeps a layer as ``base_layer`` beside the low-rank ones that it adds: the layer around them is the head.
        parts = linear[-1].split(".")
        outer = (".".join(parts[:length]) for length in range(1, len(parts)))
        adapted = (name for name in outer if isinstance(getattr(modules[name], "base_layer", None), nn.Module))
        name = next(adapted, linear[-1])
        return name, modules[name]
    if isinstance(layer, nn.Module):
        found = next((name for name, module in modules.items() if module is layer), None)
        if found is None:
            raise ValueError(f"layer must be a module of the model, got a foreign {type(layer).__name__}")
        return found, layer
    if not isinstance(layer, str):
        raise TypeError(f"layer must be a name, a module or None, got {type(layer).__name__}")
    if layer not in modules or layer == "":
        raise ValueError(
            f"layer must name a module of {type(model).__name__}, got {layer!r}{did_you_mean(layer, modules)}; "
            f"its last modules are {', '.join(list(modules)[-4:])}"
        )
    return layer, modules[layer]


def features_of_chosen_token(features: Tensor, token_logits: Tensor, logits: Tensor) -> Tensor:
    """Return the features ``[B, d]`` of the token (of ``[B, T, d]``) whose scores the model returned."""
    same = (token_logits.to(logits.dtype) == logits.detach().unsqueeze(1)).all(-1)
    if not bool(same.any(1).all()):
        raise ValueError(
            f"logits must be scores of one token each, as the head gave them, to go with features {tuple(features.shape)}; "
            "give capture_features() the layer whose input is one feature vector a sample"
        )
    position = same.to(features.dtype).argmax(1)
    return features.gather(1, position[:, None, None].expand(-1, 1, features.shape[2])).squeeze(1)


def logged_parts(terms: LossTerms) -> dict[str, Tensor]:
    """Return the parts of the loss under the names by which training logs know them."""
    names = ("logit_margin", "representation_margin")
    return {f"mr2_{name}": getattr(terms, name).detach() for name in names}
