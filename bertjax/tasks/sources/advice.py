"""Advice about users' tables: what most likely is not meant as it is read, and what to do then."""

import itertools
import re

from bertjax.tasks.sources.data_files import row_name
from bertjax.tasks.sources.tables import CSV_QUOTED, Table, read_tsv

# Number of rows of TSV that are searched for fields quoted as in CSV.
ROWS_SEARCHED = 10_000
# How programs for SQL escape tabs, line ends and backslashes, and mark a missing value.
_SQL_ESCAPE = re.compile(r"(?<=[\w.,;!?])\\[tnr]|\\\\|\A\\N\Z")


def escape_note(table: Table) -> str:
    """Returns a warning about the first row of TSV that seems quoted or escaped, or "".

    Quotes and backslashes have no meaning in TSV, so that they become a part of the text. The first
    `ROWS_SEARCHED` rows are searched.
    """
    if not table.is_tsv:
        return ""
    for number, fields in itertools.islice(read_tsv(table.path), ROWS_SEARCHED):
        where = row_name(table.path, number)
        for field in fields:
            if '""' in field and CSV_QUOTED.fullmatch(field.strip()):
                return (
                    f"warning: {where} seems to be quoted as in CSV, but quotes have no meaning in "
                    "TSV and are read as text: save the table as CSV."
                )
            if escaped := _SQL_ESCAPE.search(field):
                return (
                    f"warning: {where} holds {escaped[0]}, as MySQL and PostgreSQL escape texts in "
                    "TSV, but it is read as it stands: if it is an escape, export CSV."
                )
    return ""
