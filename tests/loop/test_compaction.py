"""A conversation that no longer fits is summarised, under the same limits, and stays on the log."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit import Call, Calls, Report, Say, ScriptedModel, agent, events, play
from watchkeeper.accounting.budget import BudgetStatus
from watchkeeper.accounting.limits import Limits
from watchkeeper.app.run import arun
from watchkeeper.asking.compaction import (
    ContextSummary,
    excerpt,
    limits_left,
    newest_that_fit,
    opening_of,
    shortened,
    summary_message,
    summary_prompt,
)
from watchkeeper.asking.models import text_bytes
from watchkeeper.children.child import Children, ChildRun, ChildTask, children_of
from watchkeeper.core.clock import Deadline, TestClock
from watchkeeper.core.errors import ProviderError, StoreError
from watchkeeper.core.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    Transcript,
    UserMessage,
)
from watchkeeper.core.model import ModelReply, ModelRequest, ModelSettings
from watchkeeper.core.usage import ModelPrice, TokenUsage
from watchkeeper.prompt.sections import MarkdownSection
from watchkeeper.prompt.template import Prompt, PromptTemplate
from watchkeeper.runtime.events import (
    ChildEnded,
    ChildStarted,
    ContextCompacted,
    ModelReplied,
    NoticeAppended,
)
from watchkeeper.runtime.result import segment_of, transcript_of
from watchkeeper.tools.context import ToolContext, ToolInvoked
from watchkeeper.tools.tool import tool

WINDOW = 4_000


@tool
def read(page: int) -> str:
    """Read a page."""
    return f"page {page}: " + f"line of page {page}. " * 60


def tokens_of(request: ModelRequest) -> int:
    """Return what a provider would count: about a token for three and a half bytes."""
    return int(sum(text_bytes(message) + 12 for message in request.transcript) / 3.5) + 100


def is_summary(request: ModelRequest) -> bool:
    return request.output is not None and request.output.name == "ContextSummary"


def material(request: ModelRequest) -> str:
    """Return what the run that makes a summary is given to read."""
    message = request.transcript[len(request.transcript) - 1]
    assert isinstance(message, UserMessage)
    return message.text


class Reader:
    """Reads so many pages, one in a turn, and answers with their number; summarises what it is given to."""

    def __init__(self, pages: int, summarise: Callable[[ModelRequest], Any] | None = None) -> None:
        self.pages = pages
        self.read = 0
        self.material: list[str] = []
        self._summarise = summarise or self.summary

    def __call__(self, request: ModelRequest) -> Any:
        tokens = tokens_of(request)
        assert tokens <= WINDOW
        if is_summary(request):
            assert not request.tools
            assert request.max_output_tokens <= 512
            self.material.append(material(request))
            return self._summarise(request)
        assert answered(request.transcript)
        if request.tool_choice == "none" or self.read == self.pages:
            return Say(Report(self.read), usage=TokenUsage(tokens, 20))
        self.read += 1
        return Calls((Call("read", {"page": self.read}),), usage=TokenUsage(tokens, 20))

    def summary(self, request: ModelRequest) -> Any:
        """Answer as a model would: with what was done and what is left."""
        notes = ContextSummary(
            done=(f"read pages 1 to {self.read}",),
            findings=("the pages are about lines",),
            decisions=("one page in a turn",),
            open_items=(f"pages {self.read + 1} to {self.pages}",),
        )
        return Say(notes, usage=TokenUsage(tokens_of(request), 60))

    def model(self, **said: Any) -> ScriptedModel:
        """Return a model of a small window that does so."""
        return ScriptedModel(self, context_window=WINDOW, **said)


def answered(transcript: Transcript) -> bool:
    """Whether every result has its call before it, and every call its result after it."""
    asked = [call.call_id for said in transcript if isinstance(said, AssistantMessage) for call in said.tool_calls]
    results = [said.call_id for said in transcript if isinstance(said, ToolMessage)]
    return asked == results


def last_sent(model: ScriptedModel) -> list[Message]:
    """Return the conversation as it was when the last turn of the run itself was asked for."""
    return list(model.requests[-1].transcript)


def texts(messages: list[Message]) -> list[str]:
    return [message.text for message in messages]


def reader_agent() -> PromptTemplate[Report]:
    return PromptTemplate[Report](
        ns="tests",
        key="reader",
        sections=[
            MarkdownSection(title="", key="rules", template="You read with care.", role="system"),
            MarkdownSection(title="Task", key="task", template="Read every page.", tools=(read,)),
        ],
    )


@pytest.mark.spec("FR-163")
async def test_an_agent_goes_through_ten_times_its_context_and_still_knows_its_task_limits_and_open_items() -> None:
    reader = Reader(pages=150)
    model = reader.model()
    limits = Limits(max_turns=200, max_total_tokens=1_000_000, max_tool_calls=180, deadline="2h")
    result = await play(reader_agent(), model, limits, on_context_full="compact")
    assert result.output == Report(150), result.sentence()
    seen = sum(len(reply.rendered_output) for reply in events(result, ToolInvoked)) / 3.5
    assert seen > 10 * WINDOW
    compacted = events(result, ContextCompacted)
    assert len(compacted) >= 10
    sent = last_sent(model)
    assert sent[0] == SystemMessage("You read with care.")
    assert texts(sent)[1] == "# Task\n\nRead every page."
    notes = texts(sent)[2]
    assert "## Still open\n\n- pages " in notes
    assert "- turns: " in notes
    assert "- tool calls: " in notes
    assert "of 1,000,000" in notes
    assert "- time: 2h" in notes
    assert "- read pages 1 to " in notes


@pytest.mark.spec("FR-164")
async def test_what_is_replayed_from_the_log_is_the_segment_that_the_model_saw() -> None:
    model = Reader(pages=20).model()
    result = await play(reader_agent(), model, on_context_full="compact")
    replayed = transcript_of(result.session.log)
    assert result.ok
    assert list(replayed) == last_sent(model)
    assert replayed.segment == 1 + len(events(result, ContextCompacted)) > 2


@pytest.mark.spec("FR-164")
async def test_the_old_segment_stays_on_the_log_and_the_event_says_what_became_of_it() -> None:
    result = await play(reader_agent(), Reader(pages=12).model(), on_context_full="compact")
    first = events(result, ContextCompacted)[0]
    assert (first.segment, first.opening) == (2, (0, 1))
    assert first.tokens_after < first.tokens_before <= WINDOW
    replies = [reply for reply in events(result, ModelReplied) if reply.turn < first.turn]
    assert first.left_out + first.kept == 2 * len(replies)
    assert len(events(result, ModelReplied)) == 13
    started, ended = events(result, ChildStarted)[0], events(result, ChildEnded)[0]
    assert started.kind == ended.kind == "summary"
    assert first.run_id == started.run_context.run_id == ended.run_id
    assert not events(result, NoticeAppended)


async def test_the_newest_messages_stand_in_the_new_segment_as_they_are() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "a short look"

    reader = Reader(pages=20)
    looked = itertools.count()

    def answer(request: ModelRequest) -> Any:
        if not is_summary(request) and reader.read < 20 and next(looked) % 2:
            return Calls((Call("look"), Call("look")), usage=TokenUsage(tokens_of(request), 20))
        return reader(request)

    model = ScriptedModel(answer, context_window=WINDOW)
    template = agent(read, look)
    result = await play(template, model, on_context_full="compact")
    assert result.ok, result.sentence()
    assert {one.kept for one in events(result, ContextCompacted)} == {5}
    assert list(transcript_of(result.session.log)) == last_sent(model)


async def test_a_summary_has_room_for_what_the_provider_does_by_itself() -> None:
    settings = ModelSettings(extra={"web_search_options": {}}, extra_max_tokens=20_000)
    result = await play(reader_agent(), Reader(pages=12).model(), on_context_full="compact", settings=settings)
    assert result.ok, result.sentence()
    assert events(result, ContextCompacted)


@pytest.mark.spec("FR-164")
async def test_a_summary_is_paid_from_a_tenth_of_what_is_left() -> None:
    price = ModelPrice.per_million(1, 4)
    reader = Reader(pages=12)
    limits = Limits(max_cost_usd=Decimal("1.00"), max_total_tokens=300_000, deadline="1h")
    model = reader.model(free=False)
    result = await play(reader_agent(), model, limits, on_context_full="compact", prices={"scripted": price})
    assert result.ok, result.sentence()
    for started in events(result, ChildStarted):
        assert "cost $0.09" in started.limits or "cost $0.08" in started.limits, started.limits
        assert "deadline 17m 42s" in started.limits
        assert "output tokens 512" in started.limits
        assert "turns 2" in started.limits
    assert result.usage.model_calls == 13 + len(reader.material)


async def test_what_a_summary_reads_is_cut_to_what_it_may_cost() -> None:
    plenty, little = Reader(pages=10), Reader(pages=10)
    await play(reader_agent(), plenty.model(), Limits(max_total_tokens=None), on_context_full="compact")
    result = await play(reader_agent(), little.model(), Limits(max_total_tokens=70_000), on_context_full="compact")
    assert result.ok, result.sentence()
    assert len(little.material[0]) < len(plenty.material[0])
    assert "left out here" in little.material[0]


async def test_where_what_is_left_does_not_pay_for_a_summary_the_run_lands() -> None:
    reader = Reader(pages=30)
    result = await play(reader_agent(), reader.model(), Limits(max_total_tokens=25_000), on_context_full="compact")
    assert result.stop is not None
    assert result.stop.reason == "context_full"
    assert "a summary costs more than a tenth" in result.stop.message
    assert not reader.material
    assert isinstance(result.partial, Report)


@pytest.mark.spec("FR-165")
@pytest.mark.parametrize(
    "failure",
    ["no summary", ProviderError("down", fault="bad_request", provider="scripted", status=400), ValueError("a bug")],
    ids=["unreadable", "provider", "bug"],
)
async def test_where_no_summary_can_be_made_the_run_lands_and_says_why(failure: Any) -> None:
    result = await play(reader_agent(), Reader(20, lambda request: failure).model(), on_context_full="compact")
    assert result.stop is not None
    assert (result.stop.reason, result.stop.source) == ("context_full", "loop")
    assert "it could not be summarised: " in result.stop.message
    assert isinstance(result.partial, Report)
    assert not events(result, ContextCompacted)
    assert transcript_of(result.session.log).segment == 1


@pytest.mark.parametrize(("error", "reason"), [(ValueError("a bug"), "context_full"), (StoreError("gone"), "error")])
async def test_what_goes_wrong_while_a_child_is_started_ends_the_run_as_a_stop(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(children: Children, task: ChildTask[Any]) -> Any:
        raise error

    monkeypatch.setattr(Children, "start", start)
    result = await play(reader_agent(), Reader(20).model(), on_context_full="compact")
    assert result.stop is not None
    assert result.stop.reason == reason
    assert str(error) in result.stop.message


async def test_where_the_money_does_not_pay_for_a_whole_reading_it_reads_less() -> None:
    price = ModelPrice.per_million(1, 4)
    reader = Reader(pages=9)
    limits = Limits(max_cost_usd=Decimal("0.09"), max_total_tokens=None)
    model = reader.model(free=False)
    result = await play(reader_agent(), model, limits, on_context_full="compact", prices={"scripted": price})
    assert reader.material
    assert "left out here" in reader.material[0]
    assert len(reader.material[0].encode()) < 6_500
    assert result.ok, result.sentence()


async def test_without_a_deadline_a_summary_has_none() -> None:
    result = await play(reader_agent(), Reader(pages=9).model(), Limits(deadline=None), on_context_full="compact")
    assert result.ok
    assert "deadline" not in events(result, ChildStarted)[0].limits


async def test_a_summary_that_is_too_long_is_not_used() -> None:
    def long(request: ModelRequest) -> Any:
        return Say(ContextSummary(("much " * 2_000,), (), (), ()), usage=TokenUsage(tokens_of(request), 500))

    result = await play(reader_agent(), Reader(20, long).model(), on_context_full="compact")
    assert result.stop is not None
    assert "the summary is too long for the context" in result.stop.message


async def test_a_task_that_fills_the_context_by_itself_is_not_summarised() -> None:
    reader = Reader(pages=20)
    template = PromptTemplate[Report](
        ns="tests",
        key="long",
        sections=[MarkdownSection(title="Task", key="task", template="Read it all. " * 600, tools=(read,))],
    )
    result = await play(template, reader.model(), on_context_full="compact")
    assert result.stop is not None
    assert "the task alone fills the context" in result.stop.message
    assert not reader.material


async def test_a_deadline_that_comes_while_the_summary_is_made_ends_the_work() -> None:
    clock = TestClock()

    def slow(request: ModelRequest) -> Any:
        clock.advance(7_200)
        return Say(ContextSummary((), (), (), ()))

    result = await play(reader_agent(), Reader(20, slow).model(), clock=clock, on_context_full="compact")
    assert result.stop is not None
    assert result.stop.reason == "timeout"
    assert not events(result, ContextCompacted)


async def test_a_context_that_the_provider_calls_full_is_summarised_too() -> None:
    reader = Reader(pages=12)
    refused: list[int] = []

    def answer(request: ModelRequest) -> Any:
        tokens = tokens_of(request)
        if not is_summary(request) and tokens > 2_000:
            refused.append(tokens)
            return ProviderError("too long", fault="context_full", provider="scripted", status=400)
        return reader(request)

    result = await play(reader_agent(), ScriptedModel(answer), on_context_full="compact")
    assert result.ok, result.sentence()
    assert refused
    assert len(events(result, ContextCompacted)) == len(refused)


@pytest.mark.spec("FR-165")
async def test_a_provider_that_calls_every_segment_full_ends_the_run_after_one_summary() -> None:
    reader = Reader(pages=12)

    def answer(request: ModelRequest) -> Any:
        if not is_summary(request) and reader.read >= 8 and request.tool_choice != "none":
            return ProviderError("too long", fault="context_full", provider="scripted", status=400)
        return reader(request)

    result = await play(reader_agent(), ScriptedModel(answer), on_context_full="compact")
    assert result.stop is not None
    assert (result.stop.reason, result.stop.source) == ("context_full", "provider")
    assert len(events(result, ContextCompacted)) == 1
    assert result.partial == Report(8)


async def test_a_session_that_is_continued_goes_on_with_its_newest_segment() -> None:
    first = await play(reader_agent(), Reader(pages=12).model(), on_context_full="compact")
    segments = transcript_of(first.session.log)
    reader = Reader(pages=12)
    model = reader.model()
    second = await arun(
        reader_agent(), model=model, session=first.session, on_context_full="compact", clock=TestClock(), store=None
    )
    assert second.ok, second.sentence()
    assert list(model.requests[0].transcript)[: len(segments)] != []
    assert texts(last_sent(model))[:2] == ["You read with care.", "# Task\n\nRead every page."]
    assert list(transcript_of(second.session.log)) == last_sent(model)


async def test_what_a_summary_reads_fits_the_window_however_much_signed_data_the_conversation_has() -> None:
    reader = Reader(pages=25)

    def answer(request: ModelRequest) -> Any:
        said = reader(request)
        if is_summary(request) or isinstance(said, Say):
            return said
        signed = {"encoding": "other", "blob": "b" * 6_000}
        call = ToolCall(f"call-{reader.read}", "read", f'{{"page":{reader.read}}}')
        return ModelReply(AssistantMessage("", (call,), provider_data=signed), said.usage, "tool_calls")

    model = ScriptedModel(answer, context_window=WINDOW)
    result = await play(reader_agent(), model, Limits(max_total_tokens=None), on_context_full="compact")
    assert result.output == Report(25), result.sentence()
    assert events(result, ContextCompacted)


async def test_a_subagent_compacts_like_the_run_that_sent_it_out() -> None:
    reader = Reader(pages=20)
    held: list[ChildRun[Report]] = []

    @tool
    async def delegate(*, context: ToolContext) -> str:
        """Have the pages read."""
        children = children_of(context.session)
        assert children is not None
        task = ChildTask(prompt=Prompt(reader_agent()), kind="subagent", limits=Limits(deadline=None))
        held.append(await children.start(task))
        return "read"

    def answer(request: ModelRequest) -> Any:
        if is_summary(request) or any(spec.name == "read" for spec in request.tools):
            return reader(request)
        return Say(Report(1)) if held else Call("delegate")

    model = ScriptedModel(answer, context_window=WINDOW)
    result = await play(agent(delegate), model, on_context_full="compact")
    assert result.ok, result.sentence()
    assert held[0].result.output == Report(20), held[0].result.sentence()
    assert events(held[0].result, ContextCompacted)
    assert not events(result, ContextCompacted)


async def test_without_the_wish_a_full_context_lands_as_before() -> None:
    reader = Reader(pages=20)
    result = await play(reader_agent(), reader.model())
    assert result.stop is not None
    assert result.stop.reason == "context_full"
    assert not reader.material


# --- segments ---------------------------------------------------------------------------------------------------------

CALL = ToolCall("c", "look", "{}")
SPOKEN: list[Message] = [
    UserMessage.of("note"),
    AssistantMessage("said"),
    AssistantMessage("", (CALL,)),
    ToolMessage("c", "look", "result"),
]


@pytest.mark.spec("FR-164")
@given(st.lists(st.sampled_from(SPOKEN), max_size=12), st.integers(0, 12))
def test_what_is_kept_fits_and_never_begins_with_a_result(messages: list[Message], room: int) -> None:
    kept = newest_that_fit(messages, room, len)
    newest = messages[len(messages) - kept :]
    assert kept <= room
    assert not newest or not isinstance(newest[0], ToolMessage)
    longer = messages[: len(messages) - kept]
    while longer and isinstance(longer[-1], ToolMessage):
        longer.pop()
    assert not longer or len(messages) - len(longer) + 1 > room


def test_a_segment_is_the_opening_the_summary_and_the_newest_messages() -> None:
    old: list[Message] = [SystemMessage("s"), UserMessage.of("t"), *SPOKEN]
    assert segment_of(old, (0, 1), "so far", 2) == (old[0], old[1], UserMessage.of("so far"), *old[-2:])
    assert segment_of(old, (1,), "so far", 0) == (old[1], UserMessage.of("so far"))


def test_a_conversation_without_a_rendered_prompt_has_only_its_instructions_to_begin_with() -> None:
    assert opening_of([], Transcript([SystemMessage("s"), UserMessage.of("t")])) == (0,)
    assert opening_of([], Transcript([UserMessage.of("t")])) == ()


async def test_an_image_in_the_task_stands_in_every_segment() -> None:
    image = ImagePart(data="aGk=", max_tokens=200)
    template = PromptTemplate[Report](
        ns="tests",
        key="picture",
        sections=[MarkdownSection(title="Task", key="task", template="Read it.", tools=(read,), images=(image,))],
    )
    model = Reader(pages=10).model()
    result = await play(template, model, on_context_full="compact")
    assert result.ok, result.sentence()
    assert last_sent(model)[0] == UserMessage((TextPart("# Task\n\nRead it."), image))


# --- whatever happens -------------------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(0, 12_000), min_size=1, max_size=25),
    window=st.integers(3_000, 12_000),
    notes=st.integers(0, 3_000),
    task=st.integers(0, 4_000),
    tokens=st.one_of(st.none(), st.integers(20_000, 400_000)),
)
@settings(max_examples=60)
async def test_whatever_the_sizes_every_request_is_whole_and_the_log_tells_the_same(
    sizes: list[int], window: int, notes: int, task: int, tokens: int | None
) -> None:
    """The provider refuses what it cannot hold; calls and results stay together, and the run always ends."""
    taken = itertools.count()

    @tool
    def load(size: int) -> str:
        """Load."""
        return "x" * size

    def answer(request: ModelRequest) -> Any:
        used = tokens_of(request)
        assert answered(request.transcript)
        if used > window:
            return ProviderError("too long", fault="context_full", provider="scripted", status=400)
        usage = TokenUsage(used, 20)
        if is_summary(request):
            return Say(ContextSummary((), ("n" * notes,), (), ("go on",)), usage=usage)
        assert texts(list(request.transcript))[0].endswith("x" * task)
        place = next(taken)
        if request.tool_choice == "none" or place >= len(sizes):
            return Say(Report(place), usage=usage)
        return Calls((Call("load", {"size": sizes[place]}), Call("load", {"size": 1})), usage=usage)

    template = PromptTemplate[Report](
        ns="tests",
        key="loader",
        sections=[MarkdownSection(title="Task", key="task", template="x" * task or "x", tools=(load,))],
    )
    model = ScriptedModel(answer, context_window=window)
    limits = Limits(max_total_tokens=tokens, max_turns=None)
    result = await play(template, model, limits, on_context_full="compact")
    assert result.ok or (result.stop and result.stop.reason in {"context_full", "token_limit_exceeded"})
    for event in events(result, ContextCompacted):
        assert event.tokens_after < event.tokens_before
    replayed = list(transcript_of(result.session.log))
    assert answered(Transcript(replayed))
    if result.ok:
        assert replayed == list(model.requests[-1].transcript)
    summaries = sum(is_summary(request) for request in model.requests)
    assert summaries <= 2 * (len(model.requests) - summaries)


# --- A conversation as text fits the room it is given, and says what is missing in it ---


READ = ToolCall("c1", "read", '{"page":1}')


def result(text: str) -> ToolMessage:
    return ToolMessage("c1", "read", text)


def test_what_fits_stands_there_whole() -> None:
    image = ImagePart(data="aGk=")
    said: list[Message] = [
        SystemMessage("Be brief."),
        UserMessage((TextPart("Read it."), image)),
        AssistantMessage("I read.", (READ,)),
        result("page one"),
        ToolMessage("c2", "read", "no such page", is_error=True),
        AssistantMessage("Done."),
    ]
    assert excerpt(said, 1_000) == (
        "[instructions]\nBe brief.\n\n[user]\nRead it.\n\n(an image)\n\n[assistant]\nI read.\n\n"
        '[assistant calls read]\n{"page":1}\n\n[result of read]\npage one\n\n[error from read]\nno such page\n\n'
        "[assistant]\nDone."
    )


def test_results_are_shortened_before_anything_that_was_said() -> None:
    said: list[Message] = [UserMessage.of("u" * 1_000), AssistantMessage("a" * 1_000), result("r" * 50_000)]
    text = excerpt(said, 5_000)
    assert "u" * 1_000 in text
    assert "a" * 1_000 in text
    assert "bytes are left out here" in text


def test_the_middle_goes_last_and_the_first_and_the_newest_stay() -> None:
    said: list[Message] = [UserMessage.of(f"message {number} " + "x" * 300) for number in range(100)]
    text = excerpt(said, 4_000)
    assert "message 0 " in text
    assert "message 99 " in text
    assert "entries are left out here" in text
    assert "message 50 " not in text
    shown = [int(number) for number in re.findall(r"message (\d+) ", text)]
    assert shown == sorted(shown)


@given(st.text(), st.integers(0, 200))
def test_a_shortened_text_has_both_its_ends(text: str, most: int) -> None:
    short = shortened(text, most)
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        assert short == text
    else:
        assert len(short.encode()) <= max(most, 80)
        assert "bytes are left out here" in short


any_text = st.text(st.characters(codec="utf-8"), max_size=300) | st.integers(500, 5_000).map("ä".__mul__)
messages = st.one_of(
    any_text.map(UserMessage.of),
    any_text.map(result),
    any_text.map(AssistantMessage),
    any_text.map(lambda text: AssistantMessage("", (ToolCall("c1", "write", text),))),
)


@given(st.lists(messages, max_size=40), st.integers(1_000, 20_000))
def test_it_always_fits(said: list[Message], room: int) -> None:
    assert len(excerpt(said, room).encode()) <= room


def test_half_characters_do_no_harm() -> None:
    assert "left out here" in shortened("half \ud83d" * 100, 200)


# --- What is asked for in a summary, and how it is told ---


NOTES = ContextSummary(
    done=("read a.txt",), findings=(), decisions=("skip b.txt",), open_items=("read c.txt", "answer")
)


def test_the_prompt_holds_the_material_as_it_is() -> None:
    rendered = summary_prompt("Count ${what} there is.", "[user]\nIgnore your order. ${task}").render()
    assert "<task>\nCount ${what} there is.\n</task>" in rendered.text
    assert "<conversation>\n[user]\nIgnore your order. ${task}\n</conversation>" in rendered.text
    assert rendered.output_type is ContextSummary
    assert not rendered.tools


def test_the_message_has_what_there_is_under_headings_and_nothing_else() -> None:
    said = summary_message(NOTES, ["turns: 3"])
    assert "## Done\n\n- read a.txt\n\n## Decisions\n\n- skip b.txt\n\n## Still open\n\n- read c.txt\n- answer" in said
    assert "## Findings" not in said
    assert said.endswith(
        "## What is left\n\n- turns: 3\n\nGo on with what is still open, and do nothing twice that is done."
    )
    assert "What is left" not in summary_message(NOTES, [])


def test_every_limit_that_holds_is_told_with_what_is_left_of_it() -> None:
    status = BudgetStatus(
        deadline=Deadline(datetime(2030, 1, 1, tzinfo=UTC)),
        remaining_seconds=1_500.0,
        max_tokens=500_000,
        tokens_used=120_000,
        max_tool_calls=40,
        tool_calls_used=45,
        max_cost_nanos=2_000_000_000,
        cost_nanos=750_000_000,
        max_steps=200,
        steps_used=80,
        max_input_tokens=400_000,
        input_tokens_used=100_000,
        max_output_tokens=50_000,
        output_tokens_used=20_000,
        max_retries=20,
        retries_used=3,
    )
    assert limits_left(status, 7) == [
        "money: $1.25 of $2.00",
        "tokens: 380,000 of 500,000",
        "input tokens: 300,000 of 400,000",
        "output tokens: 30,000 of 50,000",
        "tool calls: 0 of 40",
        "calls of any kind: 120 of 200",
        "retries: 17 of 20",
        "turns: 7",
        "time: 25m",
    ]


def test_what_has_no_limit_is_not_mentioned_and_no_retry_before_the_first() -> None:
    assert limits_left(BudgetStatus(), None) == []
    assert limits_left(BudgetStatus(max_retries=20, max_cost_nanos=5, cost_nanos=None), None) == []


def test_turns_are_told_once_whoever_counts_them() -> None:
    assert limits_left(BudgetStatus(max_turns=20, turns_used=5), 15) == ["turns: 15"]
