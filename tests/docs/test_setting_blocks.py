"""Files of settings on the pages, other than broker.conf, are such as Penstock, or whom they are for, takes."""

from __future__ import annotations

from pathlib import Path

import yaml
from support.documents import to_run

from penstock.broker.access_file import Accounts
from penstock.cli.broker_process import OBSERVE_ABOVE
from penstock.cli.console import LISTEN
from penstock.store import Settings


def test_a_file_of_settings_on_a_page_is_one_that_penstock_takes(tmp_path: Path) -> None:
    (shown,) = to_run("docs/explanation/security.md", "yaml")
    file = tmp_path / "plain_acl.yml"
    file.write_text(shown.text, encoding="utf-8")
    assert set(Accounts.load(file).by_key) == {"operations", "shop-frontend"}
    (shown,) = to_run("docs/how-to/console.md", "yaml")
    (job,) = yaml.safe_load(shown.text)["scrape_configs"]
    assert job["static_configs"] == [{"targets": [LISTEN]}]
    assert job["authorization"]["credentials"], "the token, as the console asks for it: Authorization: Bearer"
    (shown,) = to_run("docs/how-to/watch.md", "yaml")
    (job,) = yaml.safe_load(shown.text)["scrape_configs"]
    assert job["job_name"] == "penstock", "the alerts name this job"
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{Settings().listen_port + OBSERVE_ABOVE}"]}]
