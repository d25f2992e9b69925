"""Numbers as words, and tables with warnings as HTML."""

from collections.abc import Sequence
from html import escape


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, "draw"), count(2500, "draw")
    ('1 draw', '2,500 draws')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """Return a share in percent, with no more digits than matter.

    >>> percent(0.084), percent(0.00042), percent(1.0), percent(0.0)
    ('8.4%', '0.042%', '100%', '0%')
    """
    if share != share:
        return "-"
    hundredths = 100.0 * share
    if hundredths == 0 or hundredths >= 10:
        return f"{hundredths:.0f}%"
    return f"{hundredths:.2g}%"


def seconds(time: float) -> str:
    """Return a time in the unit that suits it.

    >>> seconds(3.2e-6), seconds(0.0021), seconds(75.0)
    ('3.2 µs', '2.1 ms', '75 s')
    """
    if time != time:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if time >= size:
            return f"{time / size:.3g} {unit}" if time >= 10 * size else f"{time / size:.2g} {unit}"
    return f"{time / 1e-6:.2g} µs" if time < 1e-5 else f"{time / 1e-6:.3g} µs"


def factor(number: float) -> str:
    """Return a factor with two digits.

    >>> factor(3.4567), factor(0.0312), factor(120.4)
    ('3.5', '0.031', '120')
    """
    return f"{float(f'{number:.2g}'):g}"


def with_error(value: float, error: float) -> str:
    """Return a number with its standard error, if that is known.

    >>> with_error(3.2012, 0.0231), with_error(382.4, 51.0), with_error(0.5, float("nan"))
    ('3.2 ± 0.023', '382 ± 51', '0.5')
    """
    if not error > 1e-9 * abs(value):  # else it is rounding
        return f"{value:.3g}"
    return f"{value:.3g} ± {error:.2g}"


def as_html(title: str, table: str, warnings: Sequence[str], notes: Sequence[str]) -> str:
    """Put a table, given as HTML, together with what there is to say about it."""
    parts = [f"<p><strong>{escape(title)}</strong></p>", table]
    if warnings:
        items = "".join(f"<li>{escape(text)}</li>" for text in warnings)
        parts.append(f'<p style="color:#b00020"><strong>Warnings</strong></p><ul>{items}</ul>')
    if notes:
        parts.append("<ul>" + "".join(f"<li>{escape(text)}</li>" for text in notes) + "</ul>")
    return "<div>" + "".join(parts) + "</div>"
