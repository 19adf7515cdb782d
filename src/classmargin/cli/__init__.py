"""The command line: ``main.py`` collects the verbs, each of them a function in the file of its kind."""
