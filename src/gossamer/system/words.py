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
    return amount(count, unit="B")


def significant(value: float, digits: int = 3) -> str:
    """A number to so many digits, in powers of ten only from a million on.

    >>> significant(0.01234), significant(1234.5), significant(99.6, 2), significant(2.5e8)
    ('0.0123', '1230', '100', '2.5e+08')
    """
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < 1e6 else text


def percent(value: float | None, spread: float | None = None) -> str:
    """An accuracy in percent, with its spread if given.

    >>> percent(0.936, 0.011), percent(None)
    ('93.6 ± 1.1 %', '–')
    """
    if value is None or value != value:
        return "–"
    return f"{100 * value:.1f}{'' if spread is None or spread != spread else f' ± {100 * spread:.1f}'} %"


def number(value: float | None, spread: float | None = None) -> str:
    """A measured number, to three digits; with a spread, of which two are given, zeros at their ends are kept.

    >>> number(0.24), number(0.24, 0.024), number(10.7, 6), number(142.3, 12)
    ('0.24', '0.240 ± 0.024', '10.7 ± 6.0', '142 ± 12')
    """
    if value is None or value != value:
        return "–"
    if spread is None or spread != spread:
        return significant(value)
    return f"{_padded(value, 3)} ± {_padded(spread, 2)}"


def _padded(value: float, digits: int) -> str:
    """`significant`, with the zeros at its end; an exact zero has no digits to show."""
    text = f"{value:#.{digits}g}".rstrip(".")
    return significant(value, digits) if "e" in text or not value else text


def score_text(key: str, value: float | None, spread: float | None = None) -> str:
    """A value of a metric that models are judged by: accuracies in percent, losses as they are."""
    return percent(value, spread) if "accuracy" in key else number(value, spread)


def amount(value: float, spread: float | None = None, unit: str = "") -> str:
    """A count with the prefix of its unit, to three digits, with its spread if given.

    >>> amount(48_000, 1_200), amount(5_300_000_000, unit="B"), amount(12), amount(999_900, 99_800)
    ('48 ± 1.2 k', '5.3 GB', '12', '1 ± 0.1 M')
    """
    if value != value:
        return "–"
    power = max(0, min(4, (len(str(int(float(f"{abs(value):.3g}")))) - 1) // 3))  # 999,900 is 1 M
    factor, prefix = 1000**-power, ("", "k", "M", "G", "T")[power]
    return f"{significant(factor * value)}{_plus_minus(spread, factor)} {prefix}{unit}".rstrip()


def _plus_minus(spread: float | None, factor: float = 1.0) -> str:
    """A spread behind its number; of a single seed there is none."""
    return "" if spread is None or spread != spread else f" ± {significant(factor * spread, 2)}"
