"""Fails unless what is installed are the lowest versions that pyproject.toml allows.

Otherwise a bound would promise versions that no test has seen. Names of extras follow the script's.
"""

import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
extras = [project["optional-dependencies"][name] for name in sys.argv[1:]]
for requirement in map(Requirement, sum([project["dependencies"], *extras], [])):
    (lowest,) = (bound.version for bound in requirement.specifier if bound.operator == ">=")
    installed = version(requirement.name)
    print(f"{requirement.name} {installed}", end="; ")
    # Equal but for zeros at the end: 0.11 is 0.11.0.
    if installed not in SpecifierSet(f"=={lowest}"):
        sys.exit(
            f"\n{requirement} allows {lowest}, but {installed} is the lowest that goes with it"
        )
print()
