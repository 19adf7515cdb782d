"""The tables and figures of the paper as recipes; importing this package registers them in the order of the paper."""

from classmargin.recipes.paper import (  # noqa: F401, I001 - the order of the paper
    method_tables,
    network_tables,
    class_tables,
    hyperparameters,
    class_figures,
    training_figures,
)
