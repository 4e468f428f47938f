"""The pages in Chinese say what the English ones say; one that is behind is named, with its section."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import translations
from support.documents import DOCS, ROOT, name_of
from support.translations import CHINESE, behind, english_of, page_behind, sections_of, translated_pages

EXPECTED = ("quickstart", "how-to/serve", "how-to/client", "how-to/query-with-spark", "how-to/repair")
ENGLISH = """# Sell
Sell 3 shirts with `sell` ([how](serve.md)).

## Prices

| shirt | 7.50 |

```sh
sell shirt  # by name
```

Prices rise.
"""
IN_CHINESE = """# 销售
用 `sell` 销售 3 件衬衫（[方法](serve.md)）。

## 价格

| 衬衫 | 7.50 |

```sh
sell shirt  # 按名称
```

价格上涨。
"""


@pytest.mark.parametrize("page", translated_pages(), ids=name_of)
def test_a_page_in_chinese_is_not_behind(page: Path) -> None:
    assert page_behind(page) == []


def test_the_first_pages_of_a_newcomer_and_an_operator_are_there_in_chinese() -> None:
    assert {CHINESE / f"{name}.md" for name in EXPECTED} <= set(translated_pages())


@pytest.mark.parametrize("page", translated_pages(), ids=name_of)
def test_both_languages_lead_to_each_other(page: Path) -> None:
    english = english_of(page)
    for here, there in ((english, page), (page, english)):
        first = sections_of(here)[0].text
        links = [(here.parent / link.path).resolve() for link in translations.links_of(first)]
        assert there in links, name_of(here)


def found(english: str, chinese: str, recorded: str = ENGLISH) -> list[str]:
    page = DOCS / "how-to" / "sell.md"
    record = {section.heading: section.digest for section in sections_of(page, recorded)}
    return behind(sections_of(page, english), sections_of(CHINESE / "how-to" / "sell.md", chinese), record)


def test_a_faithful_translation_is_not_behind() -> None:
    assert found(ENGLISH, IN_CHINESE.replace("serve.md", "../../how-to/serve.md")) == []
    assert found(ENGLISH, IN_CHINESE) == [], "the page that is linked may be translated, too"
    assert found(ENGLISH.replace("with `sell`", "with\n`sell`"), IN_CHINESE) == [], "other line breaks are no change"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("rise", "fall"), "is behind: section 'Prices' of docs/how-to/sell.md has changed since it was translated"),
        (("sell shirt", "sell hat"), "section '价格' of docs/zh/how-to/sell.md: blocks differ from section 'Prices'"),
        (("7.50", "8"), "section '价格' of docs/zh/how-to/sell.md: rows of tables differ from section 'Prices'"),
        (("3 shirts", "4 shirts"), "section '销售' of docs/zh/how-to/sell.md: figures differ from section 'Sell'"),
        (("`sell`", "`buy`"), "section '销售' of docs/zh/how-to/sell.md: code within lines differ"),
        (("serve.md", "client.md"), "section '销售' of docs/zh/how-to/sell.md: links differ"),
        (("## Prices", "## Prices\n\n## More"), "has no section in the place of section 'More' of docs/how-to/sell.md"),
    ],
)
def test_a_change_of_the_english_page_alone_is_noticed(change: tuple[str, str], sentence: str) -> None:
    assert any(sentence in each for each in found(ENGLISH.replace(*change), IN_CHINESE))


def test_a_change_of_the_chinese_page_alone_is_noticed() -> None:
    (sentence,) = found(ENGLISH, IN_CHINESE + "\n## 更多\n")
    assert sentence == "docs/zh/how-to/sell.md has the section '更多', for which there is none in English"
    assert found(ENGLISH, IN_CHINESE.replace("sell shirt", "sell hat")) != []


def test_a_renewed_record_is_about_the_pages_that_were_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translations, "RECORD", tmp_path / "translated.json")
    readme, quickstart = ROOT / "README.zh.md", CHINESE / "quickstart.md"
    assert page_behind(readme) != []
    assert translations.main([name_of(readme)]) == 0
    assert page_behind(readme) == []
    assert all("has changed since" in sentence for sentence in page_behind(quickstart))
    assert translations.main(["README.md"]) == 2
