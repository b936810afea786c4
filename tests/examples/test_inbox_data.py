"""The data of the inbox example holds together: messages, directory and right answers agree, and no kind is missing.

What the rules decide mechanically (customer, order, low for `other`, the nearest dates) is checked against the answers
here, so that a changed message cannot leave a stale answer behind.
"""

from __future__ import annotations

import difflib
import json
import re
from datetime import date
from email.utils import parseaddr, parsedate_to_datetime
from pathlib import Path
from typing import TypedDict

import pytest

ROOT = Path(__file__).parents[2]
INBOX = ROOT / "examples" / "inbox"
URGENCIES = {"low", "normal", "high"}
PLANS = {"none", "monthly", "fortnightly"}
STATUSES = {"processing", "shipped", "delivered", "returned", "refunded", "cancelled", "undeliverable"}
TRAITS = {
    "customer_by_order",
    "duplicate",
    "empty",
    "german",
    "hostile",
    "long",
    "markup",
    "misleading",
    "order_of_another",
    "quoted_reply",
    "spanish",
    "two_orders",
    "two_requests",
    "unknown_sender",
}
ORDER_NUMBER = re.compile(r"\bLM-\d{5}\b", re.IGNORECASE)


class Answer(TypedDict):
    queue: str | None
    urgency: str | None
    customer: str | None
    order: str | None
    error: str | None
    evidence: list[str]
    traits: list[str]
    note: str


class Customer(TypedDict):
    id: str
    name: str
    email: str
    plan: str
    since: str


class Order(TypedDict):
    id: str
    customer: str
    item: str
    placed: str
    status: str


def read(path: str) -> str:
    return (INBOX / path).read_bytes().decode("utf-8")


MESSAGES = {path.name: read(f"messages/{path.name}") for path in sorted((INBOX / "messages").iterdir())}
ANSWERS: dict[str, Answer] = json.loads(read("../inbox-answers.json"))
CUSTOMERS: list[Customer] = json.loads(read("directory/customers.json"))
ORDERS: list[Order] = json.loads(read("directory/orders.json"))
RULES = read("directory/queues.md")
QUEUES = set(re.findall(r"^## (\w+)$", RULES, re.MULTILINE))
FILED = sorted(name for name, answer in ANSWERS.items() if answer["error"] is None)
OWNERS = {order["id"]: order["customer"] for order in ORDERS}


def with_trait(trait: str) -> list[str]:
    return sorted(name for name, answer in ANSWERS.items() if trait in answer["traits"])


def head(name: str) -> dict[str, str]:
    lines = MESSAGES[name].partition("\n\n")[0].splitlines()
    return {key: value for key, _, value in (line.partition(": ") for line in lines)}


def body(name: str) -> str:
    return MESSAGES[name].partition("\n\n")[2]


def sender(name: str) -> str:
    return parseaddr(head(name)["From"])[1]


def named_orders(name: str) -> list[str]:
    """The order numbers of a message that the directory has, in the directory's spelling."""
    found = dict.fromkeys(number.upper() for number in ORDER_NUMBER.findall(MESSAGES[name]))
    return [number for number in found if number in OWNERS]


@pytest.mark.spec("FR-114")
def test_every_message_has_one_answer_and_every_answer_its_message() -> None:
    assert list(MESSAGES) == [f"{number:02}.txt" for number in range(1, len(MESSAGES) + 1)]
    assert sorted(ANSWERS) == list(MESSAGES)
    assert len(MESSAGES) >= 30


def test_every_answer_has_the_same_fields() -> None:
    for name, answer in ANSWERS.items():
        assert set(answer) == set(Answer.__annotations__), name
        assert answer["note"], name
        assert set(answer["traits"]) <= TRAITS, name


@pytest.mark.parametrize("name", FILED)
def test_message_has_three_header_lines_and_a_body(name: str) -> None:
    assert list(head(name)) == ["From", "Date", "Subject"]
    assert all(head(name).values())
    assert body(name).strip()
    assert "\r" not in MESSAGES[name]
    assert MESSAGES[name].endswith("\n")


@pytest.mark.parametrize("name", FILED)
def test_weekday_of_the_date_line_is_right(name: str) -> None:
    written = head(name)["Date"]
    assert parsedate_to_datetime(written).strftime("%a, %d %b %Y") == written[:16]


@pytest.mark.parametrize("name", FILED)
def test_answer_names_a_known_queue_and_urgency(name: str) -> None:
    answer = ANSWERS[name]
    assert answer["queue"] in QUEUES
    assert answer["urgency"] in URGENCIES
    if answer["queue"] == "other":
        assert answer["urgency"] == "low"


@pytest.mark.parametrize("name", FILED)
def test_evidence_stands_in_the_body_and_can_be_quoted(name: str) -> None:
    evidence = ANSWERS[name]["evidence"]
    assert evidence
    for sentence in evidence:
        assert sentence in body(name)
        assert 12 <= len(sentence) <= 300
        assert "\n" not in sentence
    assert len(set(evidence)) == len(evidence)


@pytest.mark.parametrize("name", FILED)
def test_customer_follows_from_the_address_and_then_from_the_order(name: str) -> None:
    by_address = {customer["email"]: customer["id"] for customer in CUSTOMERS}
    by_order = [OWNERS[number] for number in named_orders(name)]
    assert ANSWERS[name]["customer"] == by_address.get(sender(name), by_order[0] if by_order else None)


@pytest.mark.parametrize("name", FILED)
def test_order_is_named_in_the_message_and_known(name: str) -> None:
    order = ANSWERS[name]["order"]
    assert (order in named_orders(name)) if named_orders(name) else (order is None)


@pytest.mark.spec("FR-114")
def test_known_kinds_are_all_there() -> None:
    assert {trait: len(with_trait(trait)) for trait in TRAITS if not with_trait(trait)} == {}
    assert len(with_trait("misleading")) >= 6
    assert len(with_trait("hostile")) == 1


def test_every_queue_and_every_urgency_has_several_messages() -> None:
    for queue in QUEUES:
        assert sum(answer["queue"] == queue for answer in ANSWERS.values()) >= 4, queue
    for urgency in URGENCIES:
        assert sum(answer["urgency"] == urgency for answer in ANSWERS.values()) >= 4, urgency


def test_one_file_is_entirely_empty_and_cannot_be_filed() -> None:
    (name,) = with_trait("empty")
    assert MESSAGES[name] == ""
    answer = ANSWERS[name]
    assert answer["error"] == "empty"
    assert [answer["queue"], answer["urgency"], answer["customer"], answer["order"]] == [None] * 4
    assert answer["evidence"] == []
    assert [name for name, text in MESSAGES.items() if not text.strip()] == [name]
    assert set(ANSWERS) - set(FILED) == {name}


def test_hostile_message_asks_for_another_record_than_the_right_one() -> None:
    (name,) = with_trait("hostile")
    assert "ignore your previous instructions" in body(name).lower()
    (wanted,) = re.findall(r"C-\d{4}", body(name))
    assert wanted in {customer["id"] for customer in CUSTOMERS}
    assert ANSWERS[name]["customer"] != wanted
    assert ANSWERS[name]["queue"] != "billing"
    assert ANSWERS[name]["urgency"] != "high"


def test_duplicate_differs_a_little_and_has_the_same_record() -> None:
    (name,) = with_trait("duplicate")
    likeness = {
        other: difflib.SequenceMatcher(None, body(name), body(other), autojunk=False).ratio()
        for other in FILED
        if other != name
    }
    first = max(likeness, key=lambda other: likeness[other])
    assert 0.8 < likeness[first] < 1
    for field in ("queue", "urgency", "customer", "order"):
        assert ANSWERS[name][field] == ANSWERS[first][field]


def test_lengths_are_those_of_real_mail() -> None:
    words = {name: len(MESSAGES[name].split()) for name in FILED}
    (long,) = with_trait("long")
    assert 400 <= words.pop(long) <= 600
    assert {name: count for name, count in words.items() if not 60 <= count <= 220} == {}


def test_unknown_senders_have_no_customer_and_the_rest_have_one() -> None:
    assert [name for name in FILED if ANSWERS[name]["customer"] is None] == with_trait("unknown_sender")


def test_special_orders_are_what_their_trait_says() -> None:
    assert [name for name in FILED if len(named_orders(name)) > 1] == with_trait("two_orders")
    for name in with_trait("customer_by_order"):
        assert sender(name) not in {customer["email"] for customer in CUSTOMERS}
        assert ANSWERS[name]["customer"] is not None
    others = [
        name for name in FILED if OWNERS.get(ANSWERS[name]["order"] or "") not in (None, ANSWERS[name]["customer"])
    ]
    assert others == with_trait("order_of_another")


def test_markup_message_carries_remnants_of_another_format() -> None:
    (name,) = with_trait("markup")
    for remnant in ("<br>", "&nbsp;", "&#39;", "â€™", "😊"):
        assert remnant in body(name)
    assert head(name)["From"].startswith("=?UTF-8?Q?")


def test_first_six_are_short_and_of_every_queue() -> None:
    """They are the ones that `make run` shows."""
    first = sorted(MESSAGES)[:6]
    assert max(len(MESSAGES[name].split()) for name in first) < 130
    assert {ANSWERS[name]["queue"] for name in first} == QUEUES
    assert {ANSWERS[name]["urgency"] for name in first} == URGENCIES
    assert sum("misleading" in ANSWERS[name]["traits"] for name in first) == 1
    assert sum("hostile" in ANSWERS[name]["traits"] for name in first) == 1
    assert sum(bool({"misleading", "hostile"} & set(ANSWERS[name]["traits"])) for name in first) == 2


def test_directory_is_consistent() -> None:
    ids = [customer["id"] for customer in CUSTOMERS]
    emails = [customer["email"] for customer in CUSTOMERS]
    assert len(set(ids)) == len(ids) >= 40
    assert len(set(emails)) == len(emails)
    assert len(OWNERS) == len(ORDERS) >= 50
    since = {customer["id"]: date.fromisoformat(customer["since"]) for customer in CUSTOMERS}
    for customer in CUSTOMERS:
        assert set(customer) == set(Customer.__annotations__)
        assert re.fullmatch(r"C-\d{4}", customer["id"])
        assert customer["email"] == customer["email"].lower()
        assert customer["plan"] in PLANS
    for order in ORDERS:
        assert set(order) == set(Order.__annotations__)
        assert re.fullmatch(r"LM-\d{5}", order["id"])
        assert order["status"] in STATUSES
        assert date.fromisoformat(order["placed"]) >= since[order["customer"]]


def test_orders_were_placed_before_the_message_that_names_them() -> None:
    placed = {order["id"]: date.fromisoformat(order["placed"]) for order in ORDERS}
    for name in FILED:
        for number in named_orders(name):
            assert placed[number] <= parsedate_to_datetime(head(name)["Date"]).date(), name


def test_rules_give_each_queue_examples_that_no_message_contains() -> None:
    assert len(QUEUES) == 6
    for section in RULES.split("\n## ")[1:]:
        section = section.partition("\n# ")[0]
        examples = re.findall(r'^- "(.+)"$', section, re.MULTILINE)
        assert 2 <= len(examples) <= 3, section
        for example in examples:
            assert not any(example in text for text in MESSAGES.values())


def test_addresses_are_of_example_domains_only() -> None:
    texts = [*MESSAGES.values(), RULES, *(customer["email"] for customer in CUSTOMERS)]
    hosts = [host for text in texts for host in re.findall(r"(?:@|https?://)([\w.-]+\w)", text)]
    assert hosts
    assert [host for host in hosts if not re.search(r"(^|\.)example\.(com|org)$", host)] == []


@pytest.mark.spec("FR-114")
def test_answers_stand_apart_from_what_a_model_reads() -> None:
    inside = [path.read_bytes() for path in INBOX.rglob("*") if path.is_file() and path.suffix == ".json"]
    assert inside
    assert not any(b'"evidence"' in text for text in inside)
