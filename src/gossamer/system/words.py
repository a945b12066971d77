"""Numbers formatted for people."""


def counted(number: int, thing: str) -> str:
    """A number with its noun, in the plural if needed.

    >>> counted(1, "thread"), counted(2, "thread"), counted(10_000, "client")
    ('1 thread', '2 threads', '10,000 clients')
    """
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def size(count: float) -> str:
    """A number of bytes with a unit.

    >>> size(1536), size(5_300_000_000)
    ('1.54 kB', '5.3 GB')
    """
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
