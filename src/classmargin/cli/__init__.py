"""The command line: ``main.py`` collects the verbs, every verb is a file of its own."""
