"""MR² and the baselines behind one small interface.

:mod:`~classmargin.methods.base` says what a method is and when its hooks run,
:mod:`~classmargin.methods.method_registry` knows the methods by name, every other file is one method or
a few relatives. Adding one = its file, its name in the imports here, one value test.
"""

# isort: off
# Importing a method registers it; the order of these lines is the order of lists and tables.
from classmargin.methods import erm, lff, eql, ldam, supcon, dro_lt, csr  # noqa: F401
from classmargin.methods import group_dro, sam, center_loss, cmic, class_frequency, mr2  # noqa: F401

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
