"""Links of the documents lead to files and headings that exist, in a checkout and on the site."""

import importlib.util
import re
import tomllib
from types import SimpleNamespace

import pytest

from tests.test_readme import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SITE = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [
    *SITE,
    ROOT / "README.md",
    *sorted(ROOT.glob("[!R]*.md")),
    *(ROOT / "launch" / "README.md", ROOT / "benchmarks" / "README.md"),
]
LINK = re.compile(r"\]\(([^)\s]+)\)|\bsrc=\"([^\"]+)\"")
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
# Where the addresses of the project may stand; all other files can do without.
METADATA = {"pyproject.toml", "mkdocs.yml", "CITATION.cff"}
FOLDERS = ".ci .github benchmarks bertjax configs docs launch tests".split()


def without_code(page):
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def links(page):
    """The targets of the links and images of a page."""
    return [first or second for first, second in LINK.findall(without_code(page))]


def anchors(page):
    """The anchors of the headings of a page, as MkDocs and GitHub make them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"\s", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    for link in links(page):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists() and target.is_relative_to(ROOT), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", SITE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_that_leave_the_site_lead_to_the_repository(page):
    path = ROOT / "docs" / "repository_links.py"
    spec = importlib.util.spec_from_file_location("repository_links", path)
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    text = hook.on_page_markdown(
        page.read_text(encoding="utf-8"),
        page=SimpleNamespace(file=SimpleNamespace(src_uri=str(page.relative_to(ROOT / "docs")))),
        config=SimpleNamespace(repo_url=URLS["Source"]),
        files=None,
    )
    for link in (first or second for first, second in LINK.findall(text)):
        if link.startswith(URLS["Source"]):
            kind, _, name = link.removeprefix(f"{URLS['Source']}/").partition("/main/")
            place = ROOT / name.partition("#")[0]
            assert kind == ("tree" if place.is_dir() else "blob") and place.exists(), link
        elif "://" not in link and not link.startswith("#"):
            place = (page.parent / link.partition("#")[0]).resolve()
            assert place.is_relative_to(ROOT / "docs"), link


def test_the_address_of_the_project_stands_in_its_metadata_alone():
    addresses = [URLS["Homepage"], URLS["Documentation"]]
    names = [address.removeprefix("https://").rstrip("/") for address in addresses]
    files = [file for file in ROOT.glob("*.*") if file.is_file()]
    for folder in FOLDERS:
        files += [file for file in (ROOT / folder).rglob("*") if file.is_file()]
    for file in files:
        if "__pycache__" in file.parts or file.suffix in (".png", ".safetensors", ".pyc"):
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        if str(file.relative_to(ROOT)) not in METADATA:
            assert not [name for name in names if name in text], file
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.findall(r"^(?:site|repo)_url: (.*)$", site, re.MULTILINE) == addresses[::-1]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^(?:repository-code|url): (.*)$", citation, re.MULTILINE) == addresses


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
