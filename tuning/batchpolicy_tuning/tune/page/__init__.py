"""A tuning study as one HTML file that needs nothing beside it.

Importing this needs Jinja2 and plotly, which the terminal and the JSON do without.
"""

from __future__ import annotations

from batchpolicy_tuning.tune.page.render import page

__all__ = ["page"]
