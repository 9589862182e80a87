"""Reports: read the results of studies and write tables, figures and pages.

`reading` → `comparison` (statistics) → tables and figures → `report` → HTML, Markdown, CSV or LaTeX (`writing`).
"""
