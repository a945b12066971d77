"""Results in a notebook. How they look is known to a later room, which the package names when it is imported."""

from collections.abc import Callable
from typing import Any


class Displayed:
    """A result that a notebook shows as a table with curves, and that can be plotted."""

    #: The module that draws results: `gossamer` sets it.
    room: Callable[[], Any]

    def plot(self, *what: Any, **options: Any) -> Any:
        """A figure, which a notebook shows and whose `save(path)` writes it as PNG, SVG or PDF.

        Without arguments, an overview; else those of `gossamer.pages.figures.plot`: a metric or several, and
        `against`, `band`, `width`, `title`, `log`.
        """
        return Displayed.room().plot(self, *what, **options)

    def _repr_html_(self) -> str:
        return str(Displayed.room().html(self))
