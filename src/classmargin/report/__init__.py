"""Results for people: numbers of ``evaluation`` in; tables, figures and self-contained HTML pages out.

``tables`` rows and columns, and short reports for terminal, Markdown and LaTeX · ``audit_tables``, ``comparison_tables`` what is said
about a result · ``figures``, ``confusion_matrix`` the figures · ``sample_view`` pictures and texts · ``html_pages`` the pages.
"""
