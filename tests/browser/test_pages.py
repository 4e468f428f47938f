"""Each page in a real Chromium, against a live broker with traffic: what it shows, and what it changes."""

from __future__ import annotations

import pytest
from browser.browsing import PHONE, Browser
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from support.clients import MARKUP, ORDERS

from penstock.testing import LocalBroker

pytestmark = pytest.mark.browser

_JOB_S = 240.0


def lag(cluster: LocalBroker, group: str) -> int:
    with cluster.admin() as admin:
        return admin.groups.progress(group, "orders").lag


def test_the_overview_is_live(page: Browser) -> None:
    page.open("/")
    page.until_text("broker-a", "[data-mark=brokers]")
    page.until_text("serving", "[data-mark=state]")
    page.until(lambda: page.find("canvas"))
    page.until(lambda: page.text(".p-stat .v") not in ("…", "0", "–"))
    assert page.complaints() == []


def test_topics_are_listed_and_searched(page: Browser) -> None:
    page.open("/topics")
    page.until_text("payments")
    page.picture("topics")
    page.find("[data-mark=search]").send_keys("order")  # type: ignore[union-attr]
    page.until(lambda: "payments" not in page.text("table"))
    assert "orders" in page.text("table")
    page.find("[data-mark=search]").send_keys("no such topic")  # type: ignore[union-attr]
    page.until(lambda: "orders" not in page.text("table"))
    assert page.complaints() == []


def test_a_topic_is_made_used_and_deleted(page: Browser, cluster: LocalBroker) -> None:
    page.open("/topics")
    page.click("New topic")
    page.type("Name", "brand_new")
    page.click("Create")
    page.until(lambda: page.driver.current_url.endswith("/topics/brand_new"))
    page.click("Send test message")
    page.type("Body", "hello")
    page.type("Keys, separated by spaces", "greeting")
    page.click("Send")
    page.until_text("to brand_new, queue")
    cluster.settle()
    with cluster.admin() as admin:
        assert [each.body for each in admin.messages.by_key("brand_new", "greeting")] == [b"hello"]
        page.click("Delete")
        page.until_text("Delete topic brand_new?")
        page.click("Cancel")
        assert "brand_new" in admin.topics.names(), "nothing happens before a confirmation"
        page.until(lambda: not page.find(".q-dialog .q-card"))
        page.click("Delete")
        page.click("Delete", ".q-dialog")
        page.until(lambda: page.driver.current_url.endswith("/topics"))
        assert "brand_new" not in admin.topics.names()
    assert page.complaints() == []


def test_a_group_shows_its_queues_and_is_reset_after_a_preview(page: Browser, cluster: LocalBroker) -> None:
    page.open("/groups")
    page.until_text("warehouse")
    page.picture("groups")
    page.click("warehouse")
    page.until_text("orders broker-a:0", "[data-mark=group-queues]")
    assert lag(cluster, "warehouse") == 0
    page.click("Reset offsets")
    page.click("To the beginning")
    page.click("Preview")
    page.until_text(f"{ORDERS} messages will be delivered again, 0 skipped.")
    assert lag(cluster, "warehouse") == 0, "a preview changes nothing"
    page.picture("reset")
    page.click("Reset", ".q-dialog")
    page.until_text(f"in 4 queues of orders: {ORDERS} messages will be delivered again")
    assert lag(cluster, "warehouse") == ORDERS
    page.until_text(str(ORDERS), ".p-stat .v")
    page.open("/groups/billing")
    page.until_text("payments broker-a:0", "[data-mark=group-queues]")
    page.picture("group")
    assert page.complaints() == []


def test_a_message_is_found_by_key_and_shown_in_full(page: Browser) -> None:
    page.open("/messages?topic=orders&by=key&value=order_7")
    page.until_text("1 found", "[data-mark=summary]")
    page.picture("messages")
    page.find("[data-mark=found] tbody a").click()  # type: ignore[union-attr]
    page.until_text('"order": 7', "[data-mark=body]")
    page.until_text("warehouse", "[data-mark=consumers]")
    page.picture("message")
    page.click("hex")
    page.until_text("00000000  7b 22", "[data-mark=body]")
    assert page.complaints() == []


def test_messages_are_found_by_time_and_offset_and_newest(page: Browser) -> None:
    page.open("/messages?topic=oddities")
    page.until_text("2 found", "[data-mark=summary]")
    for by, wanted in (("time", "2 found"), ("queue offset", "2 found")):
        page.open("/messages?topic=oddities&by=key&value=nothing")
        page.until_text("None found", "[data-mark=summary]")
        page.driver.find_element(By.CSS_SELECTOR, "[aria-label=By]").click()
        page.click(by, ".q-menu")
        page.click("Find")
        page.until_text(wanted, "[data-mark=summary]")


def test_markup_in_names_and_bodies_is_only_text(page: Browser) -> None:
    page.open("/messages?topic=oddities&by=key&value=odd")
    page.until_text("1 found", "[data-mark=summary]")
    assert MARKUP.split()[0] in page.text("[data-mark=found]")
    page.find("[data-mark=found] tbody a").click()  # type: ignore[union-attr]
    page.until_text(MARKUP, "[data-mark=body]")
    assert "owned" not in page.driver.title
    assert page.find("img[src=x]") is None
    page.open("/topics/%3Cimg%20src=x%20onerror=document.title='owned'%3E")
    assert page.find("img[src=x]") is None
    assert "owned" not in page.driver.title.replace("document.title='owned'", "")


def test_dead_letters_are_sent_again(page: Browser, cluster: LocalBroker) -> None:
    page.open("/dead-letters")
    page.until_text("returns")
    page.click("returns")
    page.until_text("broken refund", "[data-mark=letters]")
    page.picture("dead-letters")
    page.find("[data-mark=letters] thead .q-checkbox").click()  # type: ignore[union-attr]
    page.until_text("2 records selected")
    page.click("Resend")
    page.until_text("Resend 2 dead letters?")
    page.click("Resend", ".q-dialog")
    page.until_text("Resent 2 dead letters to group returns")
    with cluster.admin() as admin:
        assert sum(each.max_offset for each in admin.topics.stats("%RETRY%returns").values()) == 2
    assert page.complaints() == []


def test_the_store_is_a_map_of_its_files(page: Browser) -> None:
    page.open("/store")
    page.until(lambda: page.find("[data-mark=log-map] .p-file"))
    page.until_text("Next retention steps")
    page.until_text("orders 0")
    page.picture("store")
    assert page.complaints() == []


def test_a_job_of_the_pipeline_runs_to_its_result(page: Browser) -> None:
    pytest.importorskip("pyarrow")
    page.open("/pipeline")
    page.click("Conditions", "[data-mark=form-search]")
    page.type("Topic", "orders")
    page.type("Text in the body", '"order": 11,')
    page.click("Start search")
    page.until_text("done", ".p-stat .v", within_s=_JOB_S)
    page.until_text("Runs without Spark (", "[data-mark=way]")
    page.until_text("1 found", "[data-mark=results]")
    page.until_text("order_11", "[data-mark=hits]")
    page.find("[data-mark=hits] tbody a").click()  # type: ignore[union-attr]
    page.until_text('"order": 11', "[data-mark=body]")
    assert page.complaints() == []


def test_usage_on_spark_ends_in_charts(page: Browser) -> None:
    pytest.importorskip("pyspark")
    page.open("/pipeline")
    page.click("On Spark", "[data-mark=form-usage]")
    page.click("Start usage")
    page.until_text("Runs on Spark, as the form asks for.", "[data-mark=way]")
    page.until_text("running", ".p-stat .v")
    page.until_text("done", ".p-stat .v", within_s=_JOB_S)
    page.until_text("Bytes by topic", "[data-mark=results]")
    page.until(lambda: page.find("[data-mark=results] canvas"))
    page.picture("usage")
    page.open("/pipeline")
    page.until_text("usage", "table")
    page.picture("pipeline")
    assert page.complaints() == []


def test_the_api_page_works_offline(page: Browser) -> None:
    page.open("/api/docs")
    page.until_text("GET /api/topics")
    assert page.complaints() == []


def test_keys_lead_around(page: Browser) -> None:
    page.open("/")
    for key, path in (("2", "/topics"), ("3", "/groups"), ("5", "/dead-letters")):
        page.until(lambda: page.text("[data-mark=state]") == "serving")
        ActionChains(page.driver).send_keys(key).perform()
        page.until(lambda path=path: page.driver.current_url.endswith(path))


def test_every_page_fits_a_phone(page: Browser) -> None:
    page.resize(PHONE)
    for path in (
        "/",
        "/topics",
        "/topics/orders",
        "/groups",
        "/groups/warehouse",
        "/messages",
        "/dead-letters",
        "/store",
    ):
        page.open(path)
        page.until_text("serving", "[data-mark=state]")
        wide = page.driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"{path} is {wide} pixels too wide"
    page.open("/")
    page.until(lambda: page.find("canvas"))
    page.picture("phone")


def test_light_and_dark_stay_as_they_were_chosen(page: Browser) -> None:
    page.open("/")
    chosen = []
    for _ in range(3):
        before = page.driver.get_cookie("penstock_theme")
        page.click("Light or dark")
        page.until(lambda before=before: page.driver.get_cookie("penstock_theme") != before)
        name = page.driver.get_cookie("penstock_theme")["value"]  # type: ignore[index]
        page.open("/")
        dark = "body--dark" in (page.find("body").get_attribute("class") or "")  # type: ignore[union-attr]
        chosen.append((name, dark))
        if name != "auto":
            page.until(lambda: page.find("canvas"))
            page.picture({"dark": "overview-dark", "light": "overview"}[name])
    assert {each for each in chosen if each[0] != "auto"} == {("light", False), ("dark", True)}


def test_a_visitor_without_the_token_is_asked_for_it(page: Browser) -> None:
    page.driver.delete_all_cookies()
    page.driver.refresh()
    page.until_text("Log in")
    page.driver.find_element(By.ID, "token").send_keys("not the token")
    page.click("Log in")
    page.until_text("Wrong token.")
    page.leave()
