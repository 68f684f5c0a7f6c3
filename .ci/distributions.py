#!/usr/bin/env python3
"""Builds the sdist and the wheel of a release, with the same bytes from the same commit.

    python .ci/distributions.py --output dist [--source DIR] [--no-isolation]

The source is the last commit of this checkout, whatever else lies there, or the folder DIR. As with
`python -m build`, the wheel is built from the sdist. Timestamps are SOURCE_DATE_EPOCH or else the
date of the commit. setuptools takes it for the wheel, but its sdist has the current time, the user
and the permissions of the checkout, so that the sdist is packed anew. Other versions of Python and
setuptools can compress in another way, and setuptools writes its version into the wheel.

README.md is also the page of the package on PyPI, which has no other file of the repository. So its
relative links lead to the files of the release at the address of the project, in pyproject.toml.

Needs `pip install build`.
"""

import argparse
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def last_commit(target: Path) -> None:
    """Writes the files of the last commit to the folder `target`."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", "HEAD"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(target, filter="data")


def date_of_last_commit() -> int:
    """Returns the date of the last commit in seconds since 1970."""
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)


def make_links_absolute(source: Path) -> None:
    """Rewrites the links of README.md in the folder `source`: pictures to their bytes."""
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    package = (source / "bertjax" / "__init__.py").read_text(encoding="utf-8")
    version = re.findall(r'^__version__ = "(.+)"$', package, re.MULTILINE)[0]

    def absolute(link: re.Match[str]) -> str:
        image, name, path = link.groups()
        kind = "raw" if image else "blob"
        return f"{image}[{name}]({project['urls']['Source']}/{kind}/v{version}/{path})"

    readme = source / "README.md"
    text = readme.read_text(encoding="utf-8")
    text = re.sub(r"(!?)\[([^][]*)\]\((?!\w+:|#)([^()\s]+)\)", absolute, text)
    readme.write_text(text, encoding="utf-8")


def pack_anew(sdist: Path, target: Path, date: int) -> None:
    """Writes a .tar.gz with the files of `sdist` that depends on their names and contents alone."""
    with (
        tarfile.open(sdist) as old,
        open(target, "wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=9, mtime=date) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            if not member.isfile():
                continue  # folders come with the files in them
            entry = tarfile.TarInfo(member.name)
            entry.size, entry.mtime, entry.mode = member.size, date, 0o644
            new.addfile(entry, old.extractfile(member))


def build(source: Path, output: Path, date: int, flags: list[str]) -> None:
    """Writes the sdist and the wheel of the sources in a folder to the folder `output`."""
    env = os.environ | {"SOURCE_DATE_EPOCH": str(date)}
    command = [sys.executable, "-m", "build", *flags]
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(
            [*command, "--sdist", "--outdir", f"{work}/dist", source], env=env, check=True
        )
        (made,) = Path(work, "dist").iterdir()
        sdist = output / made.name
        pack_anew(made, sdist, date)
        with tarfile.open(sdist) as tar:
            tar.extractall(work, filter="data")
        folder = Path(work, sdist.name.removesuffix(".tar.gz"))
        subprocess.run([*command, "--wheel", "--outdir", output, folder], env=env, check=True)


def main() -> None:
    """Parses the flags and builds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--no-isolation", action="store_true", help="with the setuptools at hand")
    given = parser.parse_args()
    os.umask(0o022)  # the wheel has the permissions of the files that it is built from
    date = int(os.environ.get("SOURCE_DATE_EPOCH") or date_of_last_commit())
    flags = ["--no-isolation"] if given.no_isolation else []
    with tempfile.TemporaryDirectory() as work:
        source = Path(work, "sources")
        if given.source is None:
            last_commit(source)
        else:
            shutil.copytree(given.source, source)
        make_links_absolute(source)
        build(source, given.output.absolute(), date, flags)


if __name__ == "__main__":
    main()
