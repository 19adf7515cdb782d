"""classmargin: the toolkit for classifiers that leave some classes behind."""

__version__ = "0.1.0"
