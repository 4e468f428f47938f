"""Pages in Chinese and the English pages that they translate: where one of them is behind the other.

A page is compared section by section: a section is a heading with what follows it, up to the next heading. Both
languages have the same sections in the same order, and in each of them the same blocks (remarks aside), code within
lines, figures, links and rows of tables. Words cannot be compared, so `RECORD` has, for each section, a digest of the
English text that the Chinese one translates. A section whose English text has another digest is behind.

    make translated PAGES="docs/zh/how-to/serve.md"

records, after the words were translated, that these pages say what the English ones say now.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from support import ROOT
from support.documents import DOCS, blocks_of, links_of, name_of, without_code

CHINESE: Final = DOCS / "zh"
READMES: Final = (ROOT / "README.md", ROOT / "README.zh.md")
RECORD: Final = ROOT / "tests" / "docs" / "translated.json"
_HEADING = re.compile(r"^(#+) (.*)$", re.M)
_FENCED = re.compile(r"^\s*```.*?^\s*```", re.M | re.S)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_REMARK = re.compile(r"(^|  +)# .*")


class Section(NamedTuple):
    """A part of a page, from its heading to the next one."""

    page: Path
    level: int
    heading: str
    text: str

    @property
    def digest(self) -> str:
        """Of its words: where lines are broken does not matter."""
        return hashlib.sha256(" ".join(self.text.split()).encode()).hexdigest()[:16]

    @property
    def place(self) -> str:
        return f"section '{self.heading}' of {name_of(self.page)}"


def english_of(page: Path) -> Path:
    """The page that this one translates; an English page is its own."""
    if page.is_relative_to(CHINESE):
        return DOCS / page.relative_to(CHINESE)
    return READMES[0] if page == READMES[1] else page


def translated_pages() -> list[Path]:
    return [READMES[1], *sorted(CHINESE.rglob("*.md"))]


def sections_of(page: Path, text: str | None = None) -> list[Section]:
    text = page.read_text(encoding="utf-8") if text is None else text
    outside = _FENCED.sub(lambda block: " " * len(block[0]), text)  # `#` in a block is no heading
    found = list(_HEADING.finditer(outside))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return [
        Section(page, len(match[1]), match[2], text[match.end() : end]) for match, end in zip(found, ends, strict=True)
    ]


def blocks_in(section: Section) -> list[tuple[str, list[str]]]:
    """Without remarks, which are in the page's own language; of drawings, which have words in it, only that they are
    there."""
    return [
        (block.kind, [_REMARK.sub("", line).rstrip() for line in block.text.splitlines()] if block.kind else [])
        for block in blocks_of(section.page, section.text)
    ]


def code_in(section: Section) -> list[str]:
    return sorted(set(re.findall(r"`[^`]+`", " ".join(_FENCED.sub("", section.text).split()))))


def links_in(section: Section) -> list[str]:
    """The English pages, and pictures, to which a section leads."""
    targets = {(section.page.parent / link.path).resolve() for link in links_of(section.text) if link.path}
    return sorted({str(english_of(target).relative_to(ROOT)) for target in targets})


def figures_in(section: Section) -> list[str]:
    words = re.sub(r"\]\([^)]*\)|<!--.*?-->", "", without_code(section.text))
    return sorted(set(_NUMBER.findall(words)))


def rows_in(section: Section) -> list[list[str]]:
    """The figures of each row of its tables, in any order: words stand in another order in Chinese."""
    rows = [line for line in without_code(section.text).splitlines() if line.startswith("|")]
    return [sorted(_NUMBER.findall(re.sub(r"\]\([^)]*\)", "", row))) for row in rows]


COMPARED: Final = {
    "blocks": blocks_in,
    "code within lines": code_in,
    "links": links_in,
    "figures": figures_in,
    "rows of tables": rows_in,
}


def behind(english: list[Section], chinese: list[Section], recorded: Mapping[str, str]) -> list[str]:
    """What differs between a page and its translation, a sentence each."""
    page = name_of(chinese[0].page)
    if [section.level for section in english] != [section.level for section in chinese]:
        for number, section in enumerate(english):
            if len(chinese) <= number or chinese[number].level != section.level:
                return [f"{page} has no section in the place of {section.place}"]
        return [f"{page} has the section '{chinese[len(english)].heading}', for which there is none in English"]
    found = []
    for section, translated in zip(english, chinese, strict=True):
        for what, part_of in COMPARED.items():
            if (expected := part_of(section)) != (got := part_of(translated)):
                differ = [each for each in (*expected, *got) if (each in expected) != (each in got)]
                found.append(f"{translated.place}: {what} differ from {section.place}: {differ or 'their order'}")
        if recorded.get(section.heading) != section.digest:
            found.append(f"{translated.place} is behind: {section.place} has changed since it was translated")
    return found


def load_record() -> dict[str, dict[str, str]]:
    record: dict[str, dict[str, str]] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    return record


def page_behind(page: Path) -> list[str]:
    return behind(sections_of(english_of(page)), sections_of(page), load_record().get(name_of(page), {}))


def renew(pages: list[Path]) -> None:
    """Records that these pages in Chinese say what the English ones say now."""
    record = load_record()
    for page in pages:
        record[name_of(page)] = {section.heading: section.digest for section in sections_of(english_of(page))}
    known = {name_of(page) for page in translated_pages()}
    kept = {name: record[name] for name in sorted(record) if name in known}
    RECORD.write_text(json.dumps(kept, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def main(names: list[str]) -> int:
    pages = [(ROOT / name).resolve() for name in names]
    if unknown := [name_of(page) for page in pages if page not in translated_pages()]:
        print(f"translated: {unknown[0]} is no page in Chinese; such pages are README.zh.md and those in docs/zh")
        return 2
    renew(pages)
    left = [sentence for page in pages for sentence in page_behind(page)]
    print("\n".join(left) or f"up to date: {', '.join(names)}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
