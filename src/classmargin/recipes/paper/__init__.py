"""The tables and figures of the paper as recipes, in the order of the paper."""

from classmargin.recipes.paper import class_tables, method_tables, network_tables, paper_figures

RECIPES = (
    *method_tables.RECIPES,
    *network_tables.RECIPES,
    *class_tables.RECIPES,
    *method_tables.SWEEPS,
    *paper_figures.RECIPES,
)
