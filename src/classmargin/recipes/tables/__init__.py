"""The tables of the paper, one file a question; every module here is imported and registers its recipes."""

from classmargin.recipes.reproduce.discovery import import_all

import_all(__name__, __path__)
