"""From "these classes fail" to a better model: a ladder of remedies, chosen on validation, tested once.

::

    remedies ──> ladder (tune, screen, confirm, combine, test) ──> judging ──> Improvement ──> pages
    registry     one generator of runs for the one runner          paired       frozen          HTML, Markdown, JSON
"""
