"""Cases of a test of which some run with every change, and all every week."""

from collections.abc import Iterable
from typing import Any

import pytest

WEEKLY = (pytest.mark.slow, pytest.mark.exhaustive)


def others_weekly(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """Returns the cases as parameters: all but those that are kept are run every week only."""
    return [pytest.param(case, marks=() if case in kept else WEEKLY) for case in cases]
