"""Penultimate features of any network, taken from its one ordinary forward pass.

Data flow: ``capture_features(model)`` finds the classification head (by name, or the last ``nn.Linear``) and puts a
forward hook on it -> each ``model(inputs)`` leaves the head's input in the hook's slot, graph included ->
``captured.features`` reads it, or :meth:`FeatureCapture.criterion` hands it to the loss. The model, its parameters, its
``state_dict`` and its output stay as they were.

The two-line change of a training script that calls ``criterion(logits, labels)``::

    captured = classmargin.capture_features(model)   # new
    criterion = captured.criterion()                 # instead of nn.CrossEntropyLoss()

Under ``DistributedDataParallel`` and ``torch.compile`` the same two lines serve, with the wrapped or the bare model; with
``torch.compile`` they must come before the first call of the compiled model, because a traced graph sees no later hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from classmargin._checks import check_int, did_you_mean

if TYPE_CHECKING:
    from classmargin.integrations.capture_loss import CapturedMR2Loss


class _Slot:
    """The hook itself: holds the input of the head's last call.

    A copy of a model (an averaged twin, a pickle) gets an empty slot of its own: it must neither write into the
    original's nor carry a graph along.
    """

    def __init__(self) -> None:
        self.features: Tensor | None = None
        self.token_logits: Tensor | None = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        features = args[0] if args else next(iter(kwargs.values()))
        self.features = features
        # A head over all tokens of a text: only its output tells which token the model chose.
        self.token_logits = output.detach() if features.dim() == 3 else None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Slot:
        return _Slot()

    def __reduce__(self) -> tuple[type[_Slot], tuple[()]]:
        return _Slot, ()


class FeatureCapture:
    """What :func:`capture_features` returns.

    Attributes:
        layer_name: Name of the head inside the (unwrapped) model.
        layer: The head.
    """

    def __init__(self, layer_name: str, layer: nn.Module) -> None:
        self.layer_name = layer_name
        self.layer = layer
        self._slot = _Slot()
        self._handle = layer.register_forward_hook(self._slot, with_kwargs=True)

    @property
    def features(self) -> Tensor:
        """Input of the head in the last forward pass, ``[B, d]``, with its graph.

        Raises:
            RuntimeError: The head has not been called since the capture began or since :meth:`clear`.
        """
        features = self._slot.features
        if features is None:
            raise RuntimeError(
                f"no features were captured: layer {self.layer_name!r} has not been called since capture_features() "
                "or the last loss. Call the model first; call capture_features() before the first call of a "
                "compiled model; after capture.close() nothing is captured."
            )
        return features.flatten(1) if features.dim() == 4 and features.shape[2:] == (1, 1) else features

    @property
    def feature_dim(self) -> int | None:
        """``d``, where the head says it."""
        size = getattr(self.layer, "in_features", None)
        return size if isinstance(size, int) else None

    @property
    def num_classes(self) -> int | None:
        """``K``, where the head says it."""
        size = getattr(self.layer, "out_features", None)
        return size if isinstance(size, int) else None

    def clear(self) -> None:
        """Let go of the features (and of the graph behind them)."""
        self._slot.features = self._slot.token_logits = None

    def take(self, logits: Tensor | None = None) -> Tensor:
        """Return the features and let go of them, so that no later loss can read them by mistake.

        Args:
            logits: Output of the model ``[B, K]``. Needed where the head runs over all tokens ``[B, T, d]`` and the model
                keeps the scores of one of them (GPT-like classifiers): the features of that token are returned.
        """
        features, token_logits = self.features, self._slot.token_logits
        self.clear()
        if logits is None or token_logits is None or logits.dim() != 2:
            return features
        return features_of_chosen_token(features, token_logits, logits)

    def criterion(
        self,
        num_classes: int | None = None,
        *,
        preset: str = "recommended",
        accumulate: int = 1,
        **options: Any,
    ) -> CapturedMR2Loss:
        """Return the MR² loss of this model as ``criterion(logits, labels)``.

        Args:
            num_classes: ``K``; None takes it from the head.
            preset: Named hyper-parameters, see :mod:`classmargin.mr2.presets`.
            accumulate: Micro-batches of an optimiser step; the statistics move with the first of them.
            **options: Arguments of :class:`classmargin.MR2Loss` that win over the preset.

        Example:
            >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
            >>> criterion = capture_features(model).criterion(mean_margin=2.0)
            >>> criterion.loss.num_classes, criterion.loss.mean_margin
            (3, 2.0)
        """
        from classmargin.integrations.capture_loss import CapturedMR2Loss
        from classmargin.mr2 import MR2Loss

        classes = (
            self.num_classes if num_classes is None else check_int("num_classes", num_classes, minimum=1)
        )
        if classes is None:
            raise ValueError(f"num_classes must be given: layer {self.layer_name!r} does not tell it")
        return CapturedMR2Loss(self, MR2Loss.preset(preset, classes, self.feature_dim, **options), accumulate)

    def close(self) -> None:
        """Take the hook off the model."""
        self._handle.remove()
        self.clear()

    def __enter__(self) -> FeatureCapture:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FeatureCapture(layer_name={self.layer_name!r}, feature_dim={self.feature_dim})"


def capture_features(model: nn.Module, layer: str | nn.Module | None = None) -> FeatureCapture:
    """Capture the penultimate features of ``model`` from its ordinary forward pass.

    Args:
        model: Any network; wrappers of ``DistributedDataParallel`` and ``torch.compile`` are looked through.
        layer: The classification head, whose *input* is captured: its name as in ``model.named_modules()``, the module
            itself, or None for the last ``nn.Linear``.

    Returns:
        A :class:`FeatureCapture`: read ``.features`` after each forward pass, or let :meth:`FeatureCapture.criterion`
        read them. Only the last forward pass is kept.

    Raises:
        ValueError: No such layer, or no ``nn.Linear`` at all.

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
    bare = unwrap(model)
    return FeatureCapture(*find_head(bare, layer))


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
        linear = [(name, module) for name, module in modules.items() if isinstance(module, nn.Linear)]
        if not linear:
            raise ValueError(
                f"model {type(model).__name__} has no nn.Linear; give layer=, the name of its classification head"
            )
        return linear[-1]
    if isinstance(layer, nn.Module):
        for name, module in modules.items():
            if module is layer:
                return name, module
        raise ValueError(f"layer must be a module of the model, got a foreign {type(layer).__name__}")
    if not isinstance(layer, str):
        raise TypeError(f"layer must be a name, a module or None, got {type(layer).__name__}")
    if layer not in modules or layer == "":
        raise ValueError(
            f"layer must name a module of {type(model).__name__}, got {layer!r}{did_you_mean(layer, modules)}; "
            f"its last modules are {', '.join(list(modules)[-4:])}"
        )
    return layer, modules[layer]


def features_of_chosen_token(features: Tensor, token_logits: Tensor, logits: Tensor) -> Tensor:
    """Return the features ``[B, d]`` of the token whose scores the model returned.

    Args:
        features: Input of the head ``[B, T, d]``.
        token_logits: Its output ``[B, T, K]``.
        logits: Output of the model ``[B, K]``: for each row one row of ``token_logits``.

    Raises:
        ValueError: Some row of ``logits`` is the score of no token.

    Example:
        >>> import torch
        >>> features = torch.arange(6.0).reshape(1, 3, 2)
        >>> features_of_chosen_token(features, 2 * features, torch.tensor([[4.0, 6.0]]))
        tensor([[2., 3.]])
    """
    same = (token_logits.to(logits.dtype) == logits.detach().unsqueeze(1)).all(-1)
    if not bool(same.any(1).all()):
        raise ValueError(
            f"logits must be scores of one token each, as the head gave them, to go with features {tuple(features.shape)}; "
            "give capture_features() the layer whose input is one feature vector a sample"
        )
    position = same.to(features.dtype).argmax(1)
    return features.gather(1, position[:, None, None].expand(-1, 1, features.shape[2])).squeeze(1)
