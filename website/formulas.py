"""Formulas of Markdown, `$…$` and blocks of `math` as GitHub reads them, as MathML, which a browser sets by itself."""

import re
from html import escape
from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

#: A dollar with a formula directly after it and a dollar directly behind that, on one line.
INLINE = r"(?<![\\$\w])\$(?![\s$])([^$\n]+?)(?<![\s\\])\$(?![\w$])"
#: Signs that are written as they are read, and the commands that the converter knows.
COMMANDS = {"∇": r"\nabla ", "≤": r"\le ", "≥": r"\ge ", "←": r"\gets ", "×": r"\times ", "·": r"\cdot ", "±": r"\pm ",
            "−": "-", "{aligned}": "{align*}"}  # fmt: skip
#: Signs that a browser would stretch to the height of their line, or set as if they stood between two numbers.
TIGHT = re.compile(r'<mo(?: fence="false")?(?: stretchy="false")?>(&#x02016;|&#x0007C;|/|&#x0002F;|max|min)</mo>')
#: Browsers know no bold in formulas but the signs that are bold themselves.
BOLD = {'<mn mathvariant="bold">1</mn>': "<mn>\U0001d7cf</mn>"}


def mathml(formula: str, display: str) -> str:
    """A formula of LaTeX as MathML; a ValueError if it cannot be read."""
    text = formula.strip()
    for sign, command in COMMANDS.items():
        text = text.replace(sign, command)
    try:
        made = convert(text, display=display)
        ElementTree.fromstring(made)
    except Exception as error:  # the converter has no type of error of its own
        raise ValueError(f"not a formula: {formula.strip()}") from error
    if "\\" in "".join(ElementTree.fromstring(made).itertext()):
        raise ValueError(f"an unknown command in the formula: {formula.strip()}")
    made = TIGHT.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', made)
    for sign, bold in BOLD.items():
        made = made.replace(sign, bold)
    return made.replace("<math ", f'<math alttext="{escape(formula.strip())}" ', 1)


def fence(source: str, *_: Any, **__: Any) -> str:
    """A block of `math`: for the extension of fences."""
    return f'<div class="formula" tabindex="0">{mathml(source, "block")}</div>'


class Inline(InlineProcessor):
    """`$…$` within a line."""

    def handleMatch(self, match: re.Match[str], data: str) -> tuple[str, int, int]:
        return self.md.htmlStash.store(mathml(match[1], "inline")), match.start(0), match.end(0)


class Formulas(Extension):
    """The extension of Python-Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:
        # After code (190), before backslashes (180): what stands between dollars is the formula's.
        md.inlinePatterns.register(Inline(INLINE, md), "formula", 185)


def makeExtension(**options: Any) -> Formulas:
    """What Python-Markdown calls."""
    return Formulas(**options)
