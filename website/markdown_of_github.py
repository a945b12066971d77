"""Markdown as GitHub reads it, for Python-Markdown, which wants more of lists and less of blocks of code."""

import re

MARKER = re.compile(r"(?:[-*+]|\d+[.)]) +")


def titled(text: str) -> str:
    """The same Markdown with file names behind the language of a block as its title, and other words left out.

    >>> titled("```python my.py"), titled("```toml no-check")
    ('```python title="my.py"', '```toml')
    """

    def opening(found: re.Match[str]) -> str:
        name = f' title="{found[2]}"' if "." in found[2] else ""
        return f"{found[1]}{name}"

    return re.sub(r"^( *```\w+) ([^\s\n]+)[^\n]*$", opening, text, flags=re.MULTILINE)


def spaced(text: str) -> str:
    """The same Markdown with four spaces to each level of its lists, and a blank line before them.

    >>> spaced("They are:\\n- one\\n  - half\\n\\n  | a table |").splitlines()
    ['They are:', '', '- one', '    - half', '', '    | a table |']
    """
    lines: list[str] = []
    inside: list[int] = []  # for each level, the column in which the text of its items begins
    fence = ""
    for line in text.splitlines():
        bare = line.lstrip(" ")
        indent = len(line) - len(bare)
        if not fence and bare:
            while inside and indent < inside[-1]:
                inside.pop()
        column = min(inside[-1], indent) if inside else 0
        shifted = f"{'    ' * len(inside)}{line[column:]}" if bare else ""
        if fence:
            fence = "" if bare.startswith(fence) else fence
        elif found := re.match(r"`{3,}|~{3,}", bare):
            fence = found[0]
        elif marker := MARKER.match(bare):
            starts = not inside and lines and lines[-1].strip() and not _in_list(lines)
            lines += [""] if starts else []
            inside.append(indent + len(marker[0]))
        lines.append(shifted)
    return "\n".join(lines) + "\n"


def _in_list(lines: list[str]) -> bool:
    """Whether the last paragraph belongs to an item."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if MARKER.match(line.lstrip(" ")):
            return True
    return False
