"""Parts: the named, parametrised pieces an experiment is put together from."""

from gossamer.parts.catalog import (
    NOT_THE_USERS,
    PYTHON_ONLY,
    Catalog,
    called_back,
    explain,
    import_dotted,
    is_lack_of_memory,
    own_code,
    parameters_of,
    part,
    summary_of,
    told,
)

__all__ = [
    "NOT_THE_USERS",
    "PYTHON_ONLY",
    "Catalog",
    "called_back",
    "explain",
    "import_dotted",
    "is_lack_of_memory",
    "own_code",
    "parameters_of",
    "part",
    "summary_of",
    "told",
]
