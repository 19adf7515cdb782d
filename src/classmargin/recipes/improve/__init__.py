"""From "these classes fail" to a better model: a ladder of remedies, chosen on validation, tested once."""
