"""MR² and the baselines behind one small interface.

:mod:`~classmargin.methods.base` says what a method is and when its hooks run,
:mod:`~classmargin.methods.method_registry` knows the methods by name, every other file is one method.
Adding one = its file, one import line here, one value test.

Example:
    >>> from classmargin.methods import list_methods
    >>> "mr2" in [info.name for info in list_methods()]
    True
"""

# isort: off
# Importing a method registers it; the order of these lines is the order of lists and tables.
from classmargin.methods import erm as erm
from classmargin.methods import lff as lff
from classmargin.methods import jtt as jtt
from classmargin.methods import eql as eql
from classmargin.methods import ldam as ldam
from classmargin.methods import supcon as supcon
from classmargin.methods import dro_lt as dro_lt
from classmargin.methods import csr as csr
from classmargin.methods import group_dro as group_dro
from classmargin.methods import fair_dro as fair_dro
from classmargin.methods import sam as sam
from classmargin.methods import center_loss as center_loss
from classmargin.methods import lgm as lgm
from classmargin.methods import cmic as cmic
from classmargin.methods import balanced_softmax as balanced_softmax
from classmargin.methods import logit_adjustment as logit_adjustment
from classmargin.methods import focal as focal
from classmargin.methods import class_balanced as class_balanced
from classmargin.methods import mr2 as mr2

# isort: on
from classmargin.methods.base import (
    LoopContext,
    Method,
    MethodLoss,
    Requirements,
    Stage,
    Step,
    TaskInfo,
    evaluate_on_toy,
)
from classmargin.methods.method_registry import (
    MethodInfo,
    create,
    default_hyperparameters,
    list_methods,
    method_info,
    methods_table_markdown,
    requirements_of,
)

__all__ = [
    "LoopContext",
    "Method",
    "MethodInfo",
    "MethodLoss",
    "Requirements",
    "Stage",
    "Step",
    "TaskInfo",
    "create",
    "default_hyperparameters",
    "evaluate_on_toy",
    "list_methods",
    "method_info",
    "methods_table_markdown",
    "requirements_of",
]
