"""Results for people: numbers of ``evaluation`` in, tables, figures and self-contained HTML pages out.

``tables`` rows and columns in every format · ``text`` short reports for terminal, Markdown, LaTeX ·
``audit_view``, ``comparison_view`` what is said about a result · ``plots``, ``confusion_view``, ``feature_map`` the
figures · ``audit_page``, ``comparison_page`` contents of the pages · ``render`` writes them.
"""
