"""Results for people: numbers of ``evaluation`` in; tables, figures and self-contained HTML pages out."""
