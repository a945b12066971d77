"""Parts: the named pieces with parameters that an experiment is made of, and what happens when a user's code fails."""

from gossamer.parts.catalog import PYTHON_ONLY, Catalog, explain, import_dotted, parameters_of, part, summary_of
from gossamer.parts.user_code import (
    describe_error,
    in_user_code,
    is_out_of_memory,
    made_by_user,
    user_code,
    user_line,
)

__all__ = [
    "PYTHON_ONLY",
    "Catalog",
    "describe_error",
    "explain",
    "import_dotted",
    "in_user_code",
    "is_out_of_memory",
    "made_by_user",
    "parameters_of",
    "part",
    "summary_of",
    "user_code",
    "user_line",
]
