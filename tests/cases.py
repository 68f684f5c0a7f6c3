"""Cases of a test of which some run with every change, and all every week."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

WEEKLY = (pytest.mark.slow, pytest.mark.exhaustive)


def others_weekly(cases: Iterable[Any], *kept: Any, slow: Sequence[Any] = ()) -> list[Any]:
    """Returns the cases as parameters: those that are kept run always, and `slow` ones in CI.

    All others are run every week only.
    """
    marks = dict.fromkeys(slow, pytest.mark.slow) | dict.fromkeys(kept, ())
    return [pytest.param(case, marks=marks.get(case, WEEKLY)) for case in cases]
