"""Self-contained HTML pages: templates, their common style, and the function that fills them."""
