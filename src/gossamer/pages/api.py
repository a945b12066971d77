"""The reference of what users import, made from the docstrings and signatures of the code: `docs/python.md`."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

OPENING = """\
# Python

<!-- Written by `make docs` from the docstrings. Change the code, not this page. -->

What a program of yours imports. [Start](start.md) has examples of most of it, and [how a method is
written](methods.md#the-interface) the members of your own method. Names that are not on this page may move.
"""

#: The sections of the page: a heading, a package, and names in it.
SECTIONS = (
    ("Run an experiment", "gossamer", ("Experiment", "simulate", "resume", "Run", "read_run")),
    ("How it is run", "gossamer.simulation", ("Options",)),
    ("Compare", "gossamer", ("Study", "compare")),
    ("What a comparison gives", "gossamer.studies", ("Comparison", "VariantResult", "Difference", "Estimate")),
    ("Watch a run, or stop it", "gossamer", ("Observer", "show_progress")),
    ("What observers see", "gossamer.simulation", ("RunStart", "RoundRecord", "Outcome", "TensorBoard", "MLflow")),
    ("Data", "gossamer", ("per_client",)),
    ("Parts of your own", "gossamer.parts", ("part",)),
    ("Methods of your own", "gossamer.methods", ("Round", "sam_gradient", "heavy_ball", "combine")),
    ("Graphs of your own", "gossamer.graphs", ("Network", "Claims", "check", "summarise", "GraphSummary")),
    ("Theory", "gossamer.theory", ("analyse", "Theory", "Bound", "Constants")),
    (
        "Flatness",
        "gossamer.studies",
        ("measure_sharpness", "SharpnessSettings", "measure_landscapes", "LandscapeSettings"),
    ),
    ("One round at a time", "gossamer.experiment", ("prepare",)),
    ("The reference engine", "gossamer.engines", ("Reference",)),
    ("Errors", "gossamer", ("GossamerError",)),
)
#: Where the fields of a class are described, if not on this page.
ELSEWHERE = {"Experiment": "Its fields are [the keys of an experiment](experiment.md#keys)."}
EXAMPLE = re.compile(r"(?:^>>> .*\n(?:.+\n?)*)+", re.MULTILINE)


def api_reference() -> str:
    """The Markdown of the page."""
    lines = [OPENING]
    for heading, package, names in SECTIONS:
        lines.append(f"## {heading}\n")
        lines.append(f"```py\nfrom {package} import {', '.join(names)}\n```\n")
        module = importlib.import_module(package)
        for name in names:
            lines += _entry(name, getattr(module, name))
    return "\n".join(lines)


def _entry(name: str, thing: Any) -> Iterator[str]:
    """One name: its signature or fields, its docstring, its members."""
    yield f"### `{name}`\n"
    node = _source(thing)
    code = _class(node, thing) if isinstance(node, ast.ClassDef) else [_signature(node)]
    if code and name not in ELSEWHERE:
        yield _fenced("py", "\n".join(code))
    yield _prose(inspect.getdoc(thing) or "")
    if name in ELSEWHERE:
        yield ELSEWHERE[name] + "\n"
    if isinstance(node, ast.ClassDef) and (members := list(_members(node))):
        yield "\n".join(members) + "\n"


def _source(thing: Any) -> Any:
    """The definition of a class or a function, as a tree."""
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def _signature(node: Any, name: str | None = None) -> str:
    """A call as it is written in the code; of many arguments, one on a line."""
    arguments = [argument for argument in _arguments(node.args) if argument not in ("self", "cls")]
    returns = f" -> {_text(node.returns)}" if node.returns is not None and name is None else ""
    line = f"{name or node.name}({', '.join(arguments)}){returns}"
    if len(line) <= 88:
        return line
    each = "".join(f"    {argument},\n" for argument in arguments)
    return f"{name or node.name}(\n{each}){returns}"


def _arguments(found: ast.arguments) -> Iterator[str]:
    """The arguments of a call, each as text."""
    plain = [*found.posonlyargs, *found.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(found.defaults))
    for argument, default in zip(plain, [*defaults, *found.defaults], strict=True):
        yield _text(argument) + (f" = {_text(default)}" if default else "")
    if found.vararg or found.kwonlyargs:
        yield f"*{_text(found.vararg)}" if found.vararg else "*"
    for argument, given in zip(found.kwonlyargs, found.kw_defaults, strict=True):
        yield _text(argument) + (f" = {_text(given)}" if given else "")
    if found.kwarg:
        yield f"**{_text(found.kwarg)}"


def _class(node: ast.ClassDef, thing: Any) -> list[str]:
    """The call that makes an object, or its fields with what the code says of them."""
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return [_signature(member, node.name)]
    fields = [member for member in node.body if isinstance(member, ast.AnnAssign)]
    lines = list(_fields(fields, inspect.getsource(thing).splitlines()))
    return [f"class {node.name}:", *lines] if lines else []


def _fields(fields: list[ast.AnnAssign], source: list[str]) -> Iterator[str]:
    """Public fields, each below the comment that stands above it in the code."""
    for field in fields:
        assert isinstance(field.target, ast.Name)
        if field.target.id.startswith("_"):
            continue
        above = field.lineno - 2
        comment: list[str] = []
        while source[above].strip().startswith("#:"):
            comment.insert(0, "    #" + source[above].strip().removeprefix("#:"))
            above -= 1
        yield from comment
        default = "" if field.value is None else _default(field.value)
        yield f"    {field.target.id}: {_text(field.annotation)}{default}"


def _default(value: ast.expr) -> str:
    """The default of a field; that of a call such as `field(...)` is left out, unless it is a plain value."""
    if isinstance(value, ast.Call):
        return next((f" = {_text(k.value)}" for k in value.keywords if k.arg == "default"), "")
    return f" = {_text(value)}"


def _members(node: ast.ClassDef) -> Iterator[str]:
    """Public methods and properties with their docstrings, as a list."""
    for member in node.body:
        if not isinstance(member, ast.FunctionDef) or member.name.startswith("_"):
            continue
        kinds = {_text(each).partition("(")[0] for each in member.decorator_list}
        said = (ast.get_docstring(member) or "").partition("\n\n")[0].replace("\n", " ")
        if not said:
            continue
        is_property = bool(kinds & {"property", "cached_property"})
        arguments = ", ".join(argument for argument in _arguments(member.args) if argument not in ("self", "cls"))
        yield f"- `{member.name if is_property else f'{member.name}({arguments})'}`: {said}"


def _text(node: ast.AST) -> str:
    """Code as this project writes it."""
    return ast.unparse(node).replace("'", '"')


def _prose(text: str) -> str:
    """A docstring as Markdown: its examples are blocks."""
    return EXAMPLE.sub(lambda found: _fenced("pycon", found[0].rstrip()), text + "\n")


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```\n"
