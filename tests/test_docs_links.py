"""Links of the documentation to files of the repository name files that exist."""

import re

import pytest

from tests.test_readme import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
REPOSITORY = "https://github.com/bertjax/bertjax/"
LINK = re.compile(r"\]\(([^)\s]+)\)|\bsrc=\"([^\"]+)\"")


def links(page):
    """The targets of the links and images of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [first or second for first, second in LINK.findall(text)]


def anchors(page):
    """The anchors of the headings of a page, as MkDocs and GitHub make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"\s", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_the_repository_name_files(page):
    for link in links(page):
        if link.startswith(REPOSITORY):
            path = link.removeprefix(REPOSITORY).partition("#")[0]
            kind, _, name = path.partition("/main/")
            place = ROOT / name
            exists = place.is_file() if kind == "blob" else place.is_dir()
            assert kind in ("blob", "tree") and name and exists, link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_link_to_other_files_by_their_address_on_github(page):
    """Pages of the site may not leave docs/, where MkDocs finds no files."""
    for link in links(page):
        if page.name != "README.md" and "://" not in link:
            assert not link.startswith(("/", "../")), f"{link}: link to {REPOSITORY}blob/main/..."


def test_links_of_the_readme_have_a_target():
    """Those of the pages are checked by MkDocs, which does not know the README."""
    for link in links(ROOT / "README.md"):
        name, _, anchor = link.partition("#")
        if "://" not in link and name:
            target = ROOT / name
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_tests_that_pages_name_exist():
    """Pages say which test guarantees what: by the name of a test, or by its file or folder."""
    sources = {file: file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py")}
    functions = set(re.findall(r"^def (test_\w+)\(", "\n".join(sources.values()), re.MULTILINE))
    named = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`(test_\w+)`", text):
            assert name in functions, f"{page.name}: {name}"
            named += 1
        for path in re.findall(r"`(tests/[\w/.]+)`", text):
            assert (ROOT / path).exists(), f"{page.name}: {path}"
    assert named >= 50
