"""The paper's tables and figures as recipes: grid, scales, printed values and rendering of each.

::

    tables/*.py, figures/*.py     register(Recipe(...))                     one file a question
    plan.py                       Recipe, scale, changes -> planned runs    (recipes.run_pool trains them)
    measure.py                    finished run folders   -> BlockResult     scores, thirds, paired changes, cost
    record.py                     Record <-> record.json                    all that a page needs, and nothing big
    views.py, render.py           Record -> tables       -> terminal, Markdown, LaTeX, JSON, HTML
    from_runs.py                  folders of compare-methods -> Record      runs that exist already
"""
