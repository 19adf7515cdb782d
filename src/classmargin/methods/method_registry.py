"""One place that knows the methods by name: registering, creating (``sam+NAME`` too) and listing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from classmargin._checks import did_you_mean
from classmargin.methods.base import Method, Requirements, TaskInfo

Family = Literal["baseline", "re-weighting", "margin", "prior", "representation", "robust", "sharpness", "ours"]
MethodClass = TypeVar("MethodClass", bound=type[Method])


@dataclass(frozen=True)
class MethodInfo:
    """What there is to know of a method without building it.

    Attributes:
        name: Registry name.
        title: Name in tables.
        paper: Authors, title, venue and year.
        family: Kind of idea.
        summary: One sentence.
        search: Sensible range of each hyper-parameter: choices, or ``(low, high)`` with ``"log"`` third.
        cost: Forward-backward passes per sample relative to ERM.
        equals_erm_when_balanced: Whether the loss provably is cross-entropy on balanced data.
        fixed: Hyper-parameters that this name sets for the class it shares with other names.
        defaults: Defaults of this name that differ from those of the class; presets win over them.
        presets: Named sets of hyper-parameters.
        caveats: Where paper and original code disagree, and what to watch.
    """

    name: str
    title: str
    paper: str
    family: Family
    summary: str
    search: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    cost: float = 1.0
    equals_erm_when_balanced: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    caveats: str = ""


_CLASSES: dict[str, type[Method]] = {}
_INFOS: dict[str, MethodInfo] = {}


def register(*variants: MethodInfo, **fields: Any) -> Callable[[MethodClass], MethodClass]:
    """Register a class under one name (the ``fields`` of its record) or several that differ in ``fixed``."""

    def decorate(cls: MethodClass) -> MethodClass:
        for info in variants or (MethodInfo(**fields),):
            if info.name in _CLASSES:
                raise ValueError(f"method {info.name!r} is registered twice, the second time by {cls.__name__}")
            _CLASSES[info.name], _INFOS[info.name] = cls, info
        return cls

    return decorate


def list_methods() -> list[MethodInfo]:
    """Return the info records in the order of registration."""
    return list(_INFOS.values())


def method_info(name: str) -> MethodInfo:
    """Return the record of a method; for ``sam+NAME`` that of ``NAME`` with SAM's cost on top."""
    inner_name = _inner_of_sam(name)
    if inner_name is not None:
        inner, sam = method_info(inner_name), _INFOS["sam"]
        return replace(
            inner,
            name=name,
            title=f"{sam.title} + {inner.title}",
            paper=f"{inner.paper}; {sam.paper}",
            family="sharpness",
            summary=f"{inner.summary} Trained with sharpness-aware steps.",
            search={**inner.search, **sam.search},
            presets={**sam.presets, **inner.presets},
            cost=sam.cost * inner.cost,
            equals_erm_when_balanced=False,
        )
    if name not in _INFOS:
        options = f"{', '.join(_INFOS)} or sam+NAME"
        raise ValueError(f"method must be one of {options}; got {name!r}{did_you_mean(name, _INFOS)}")
    return _INFOS[name]


def default_hyperparameters(name: str) -> dict[str, Any]:
    """Return the hyper-parameters of a method with their default values, ``fixed`` ones of the name applied.

    Example:
        >>> default_hyperparameters("sam+erm")
        {'label_smoothing': 0.0, 'rho': 0.05, 'adaptive': False, 'weight_decay': 0.0}
    """
    inner_name = _inner_of_sam(name)
    if inner_name is not None:
        return {**default_hyperparameters(inner_name), **default_hyperparameters("sam")}
    info = method_info(name)
    defaults = {**_CLASSES[name].default_hyperparameters(), **info.defaults, **info.fixed}
    defaults.pop("inner", None)  # of SAM
    return defaults


def resolve_hyperparameters(name: str, *, preset: str | None = None, **hyperparameters: Any) -> dict[str, Any]:
    """Return every hyper-parameter a method will run with: defaults, then preset, then explicit ones."""
    info, resolved = method_info(name), default_hyperparameters(name)
    if preset is not None:
        if preset not in info.presets:
            options = ", ".join(info.presets) or "(none)"
            hint = did_you_mean(preset, info.presets)
            raise ValueError(f"preset of {name} must be one of {options}; got {preset!r}{hint}")
        # What the name itself fixes is its identity (mr2-logit has no second term) and wins over a preset.
        resolved.update({**info.presets[preset], **info.fixed})
    for key, value in hyperparameters.items():
        if key not in resolved:
            options, hint = ", ".join(resolved) or "none", did_you_mean(key, resolved)
            raise ValueError(f"method {name} has no hyper-parameter {key!r}; it has {options}{hint}")
        resolved[key] = value
    return resolved


def settle_hyperparameters(
    name: str, hyperparameters: Mapping[str, Any], *, epochs: int, distinct_views: bool
) -> dict[str, Any]:
    """Return resolved hyper-parameters with those that a method leaves to the run (``"auto"``) written out."""
    return _class_of(name).settle(hyperparameters, epochs=epochs, distinct_views=distinct_views)


def create(name: str, task: TaskInfo, *, preset: str | None = None, **hyperparameters: Any) -> Method:
    """Build the method ``name`` (or ``sam+NAME``); explicit ``hyperparameters`` win over those of a ``preset``.

    Raises:
        ValueError: Unknown name, preset or hyper-parameter; the message suggests the nearest.
    """
    resolved: dict[str, Any] = resolve_hyperparameters(name, preset=preset, **hyperparameters)
    inner_name = _inner_of_sam(name)
    if inner_name is None:
        return _CLASSES[name](task, **resolved)
    own = {key: resolved.pop(key) for key in default_hyperparameters("sam")}
    return _CLASSES["sam"](task, **{"inner": create(inner_name, task, **resolved), **own})


def requirements_of(name: str, *, preset: str | None = None, **hyperparameters: Any) -> Requirements:
    """Return what a method needs before its task exists; arguments as of :func:`create`."""
    resolved = resolve_hyperparameters(name, preset=preset, **hyperparameters)
    return _class_of(name).needs(**resolved)


def _class_of(name: str) -> type[Method]:
    """Return the class that a name, or the method inside SAM, stands for."""
    return _CLASSES[_inner_of_sam(name) or name]


def _inner_of_sam(name: str) -> str | None:
    """Return ``NAME`` of ``sam+NAME``, or None for a plain name."""
    if not name.startswith("sam+"):
        return None
    inner = name.removeprefix("sam+")
    if inner == "sam" or inner.startswith("sam+"):
        raise ValueError(f"method {name!r} wraps SAM in SAM; use 'sam' or 'sam+NAME' with another method")
    return inner


def methods_table_markdown() -> str:
    """Return the table of all methods for the documentation, in Markdown, from the info records."""
    rows = ["| name | method | family | what it does | needs | passes | source |", "|---|---|---|---|---|---|---|"]
    for info in list_methods():
        needs, passes = needs_text(requirements_of(info.name)) or "–", f"{info.cost:.3g}"
        cells = (f"`{info.name}`", info.title, info.family, info.summary, needs, passes, info.paper)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def needs_text(requirements: Requirements) -> str:
    """Return what a method needs beyond inputs, labels and logits, in words."""
    words = {
        "features": requirements.features,
        "sample index": requirements.sample_index,
        f"{requirements.views} views": requirements.views > 1,
        "class counts": requirements.class_counts,
        f"{requirements.sampler} sampler": requirements.sampler != "plain",
        f"{requirements.head} head": requirements.head != "linear",
        "second network": requirements.second_model,
        "training pass": requirements.training_pass,
    }
    return ", ".join(word for word, needed in words.items() if needed)
