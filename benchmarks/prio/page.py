"""Tables in pages of the documentation."""

import re
from pathlib import Path


def write_table(page: Path, name: str, table: str) -> None:
    """Puts a table between the marks ``<!-- NAME -->`` and ``<!-- end -->`` of a Markdown file.

    Raises:
        ValueError: the page has not exactly one such place.
    """
    pattern = rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)"
    text, found = re.subn(pattern, rf"\g<1>\n{table}\n\n\g<2>", page.read_text(), flags=re.DOTALL)
    if found != 1:
        raise ValueError(f"{page} has {found} places for the table {name}: expected 1")
    page.write_text(text)
