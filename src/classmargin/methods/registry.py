"""One place that knows the methods by name: registering, creating and listing them.

``register`` is a class decorator with a frozen info record; ``create`` builds a method for a task;
``sam+NAME`` is composed here from the wrapper registered as ``sam``. Hyper-parameters are the keyword
arguments of a method's constructor, so defaults are written once, in its signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    caveats: str = ""


_CLASSES: dict[str, type[Method]] = {}
_INFOS: dict[str, MethodInfo] = {}


def register(*infos: MethodInfo) -> Callable[[MethodClass], MethodClass]:
    """Register a class under one or more names (variants that differ only in ``fixed`` hyper-parameters)."""

    def decorate(cls: MethodClass) -> MethodClass:
        for info in infos:
            if info.name in _CLASSES:
                raise ValueError(f"method {info.name!r} is registered twice ({_CLASSES[info.name].__name__}, {cls.__name__})")
            _CLASSES[info.name] = cls
            _INFOS[info.name] = info
        return cls

    return decorate


def list_methods() -> list[MethodInfo]:
    """Return the info records in the order of registration."""
    return list(_INFOS.values())


def method_info(name: str) -> MethodInfo:
    """Return the record of a method; for ``sam+NAME`` that of ``NAME`` with SAM's cost on top."""
    if name.startswith("sam+"):
        inner = method_info(name[4:])
        return MethodInfo(
            name=name,
            title=f"SAM + {inner.title}",
            paper=f"{inner.paper}; {_INFOS['sam'].paper}",
            family="sharpness",
            summary=f"{inner.summary} Trained with sharpness-aware steps.",
            search=inner.search,
            cost=2.0 * inner.cost,
            equals_erm_when_balanced=False,
        )
    if name not in _INFOS:
        raise ValueError(f"method must be one of {', '.join(_INFOS)} or sam+NAME; got {name!r}{did_you_mean(name, _INFOS)}")
    return _INFOS[name]


def default_hyperparameters(name: str) -> dict[str, Any]:
    """Return the hyper-parameters of a method with their default values, ``fixed`` ones of the name applied.

    For ``sam+NAME`` these are the ones of ``NAME`` and ``rho``.
    """
    if name.startswith("sam+"):
        return {**default_hyperparameters(name[4:]), **default_hyperparameters("sam")}
    info = method_info(name)
    parameters = inspect.signature(_CLASSES[name].__init__).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "inner"}
    return {**defaults, **info.fixed}


def create(name: str, task: TaskInfo, *, preset: str | None = None, **hyperparameters: Any) -> Method:
    """Build the method ``name`` for ``task``.

    Args:
        name: Registry name, or ``sam+NAME``.
        task: What the method may know.
        preset: Named set of hyper-parameters; explicit ones win over it.
        **hyperparameters: Keyword arguments of the method's constructor.

    Raises:
        ValueError: Unknown name, preset or hyper-parameter; the message suggests the nearest.
    """
    if name.startswith("sam+"):
        method_info(name[4:])
        own = {key: hyperparameters.pop(key) for key in default_hyperparameters("sam") if key in hyperparameters}
        return _CLASSES["sam"](task, inner=create(name[4:], task, preset=preset, **hyperparameters), **own)  # type: ignore[call-arg]
    info = method_info(name)
    chosen = dict(info.fixed)
    if preset is not None:
        if preset not in info.presets:
            raise ValueError(
                f"preset of {name} must be one of {', '.join(info.presets) or '(none)'}; got {preset!r}"
                + did_you_mean(preset, info.presets)
            )
        chosen.update(info.presets[preset])
    allowed = default_hyperparameters(name)
    for key in hyperparameters:
        if key not in allowed:
            raise ValueError(f"method {name} has no hyper-parameter {key!r}; it has {', '.join(allowed) or 'none'}{did_you_mean(key, allowed)}")
    chosen.update(hyperparameters)
    return _CLASSES[name](task, **chosen)


def requirements_of(name: str, **hyperparameters: Any) -> Requirements:
    """Return what a method needs before its task exists.

    A class whose needs depend on its hyper-parameters offers a static method ``needs(**hyperparameters)``.
    """
    if name.startswith("sam+"):
        return requirements_of(name[4:], **{k: v for k, v in hyperparameters.items() if k not in default_hyperparameters("sam")})
    method_info(name)
    cls = _CLASSES[name]
    needs = getattr(cls, "needs", None)
    if needs is not None:
        result: Requirements = needs(**{**default_hyperparameters(name), **hyperparameters})
        return result
    return cls.requirements
