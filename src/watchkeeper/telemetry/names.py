"""The names of telemetry: those of OpenTelemetry's GenAI conventions, those of OpenInference, and Watchkeeper's own.

The GenAI conventions are in development, and no package has their constants; ``tests/telemetry/test_names.py`` compares
these with what OpenTelemetry's own helper for instrumentations sends. What they have no name for is ``watchkeeper.*``.
Sums over a run are never ``gen_ai.usage.*``: a backend would count what its calls used once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SCOPE: Final = "watchkeeper"

# --- operations, which begin the names of spans -----------------------------------------------------------------------

CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
INVOKE_AGENT: Final = "invoke_agent"
INVOKE_WORKFLOW: Final = "invoke_workflow"

# --- attributes of the conventions ------------------------------------------------------------------------------------

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
CONVERSATION: Final = "gen_ai.conversation.id"
AGENT_NAME: Final = "gen_ai.agent.name"
AGENT_ID: Final = "gen_ai.agent.id"
WORKFLOW_NAME: Final = "gen_ai.workflow.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
TEMPERATURE: Final = "gen_ai.request.temperature"
TOP_P: Final = "gen_ai.request.top_p"
SEED: Final = "gen_ai.request.seed"
STREAM: Final = "gen_ai.request.stream"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE: Final = "gen_ai.usage.cache_write.input_tokens"
CACHE_CREATION: Final = "gen_ai.usage.cache_creation.input_tokens"
"""The older name of the same; backends still read it."""
REASONING: Final = "gen_ai.usage.reasoning.output_tokens"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
TOKEN_TYPE: Final = "gen_ai.token.type"
ERROR_TYPE: Final = "error.type"

# --- events -----------------------------------------------------------------------------------------------------------

EVALUATION: Final = "gen_ai.evaluation.result"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_LABEL: Final = "gen_ai.evaluation.score.label"
EVALUATION_VALUE: Final = "gen_ai.evaluation.score.value"
EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"
DETAILS: Final = "gen_ai.client.inference.operation.details"

# --- metrics ----------------------------------------------------------------------------------------------------------

OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
TOKEN_USAGE: Final = "gen_ai.client.token.usage"
TOOL_DURATION: Final = "gen_ai.execute_tool.duration"
AGENT_DURATION: Final = "gen_ai.invoke_agent.duration"
WORKFLOW_DURATION: Final = "gen_ai.invoke_workflow.duration"

DURATION_BOUNDS: Final = tuple(0.01 * 2**step for step in range(14))
TOKEN_BOUNDS: Final = tuple(4**step for step in range(14))
AGENT_BOUNDS: Final = tuple(0.1 * 2**step for step in range(13))
WORKFLOW_BOUNDS: Final = (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)

# --- OpenInference: by this, Phoenix shows a span as what it is -------------------------------------------------------

KIND: Final = "openinference.span.kind"
KINDS: Final[Mapping[str, str]] = {
    CHAT: "LLM",
    EXECUTE_TOOL: "TOOL",
    INVOKE_AGENT: "AGENT",
    INVOKE_WORKFLOW: "CHAIN",
}

# --- Watchkeeper's own ------------------------------------------------------------------------------------------------

RUN_ID: Final = "watchkeeper.run.id"
PARENT_RUN_ID: Final = "watchkeeper.run.parent_id"
ATTEMPT: Final = "watchkeeper.run.attempt"
CHILD_KIND: Final = "watchkeeper.run.kind"
ITEM: Final = "watchkeeper.run.item"
ITEMS: Final = "watchkeeper.run.items"
ITEMS_DONE: Final = "watchkeeper.run.items_done"
DEPTH: Final = "watchkeeper.run.depth"
TURNS: Final = "watchkeeper.run.turns"
COMPLETION: Final = "watchkeeper.run.completion"
LIMITS: Final = "watchkeeper.limits"
LIMIT: Final = "watchkeeper.limit."
"""Begins the name of each limit that holds, such as ``watchkeeper.limit.max_turns``."""
DEADLINE: Final = "watchkeeper.deadline"
REMAINING: Final = "watchkeeper.deadline.remaining_seconds"
STOP_REASON: Final = "watchkeeper.stop.reason"
STOP_SOURCE: Final = "watchkeeper.stop.source"
STOP_MESSAGE: Final = "watchkeeper.stop.message"
STOP_LIMIT: Final = "watchkeeper.stop.limit"
STOP_VALUE: Final = "watchkeeper.stop.value"
NODE_ID: Final = "watchkeeper.call.id"
TURN: Final = "watchkeeper.call.turn"
CALL_ATTEMPT: Final = "watchkeeper.call.attempt"
LANDING: Final = "watchkeeper.call.landing"
OUTCOME: Final = "watchkeeper.call.outcome"
STATUS: Final = "watchkeeper.call.status"
GRANTED: Final = "watchkeeper.call.granted_output_tokens"
COST: Final = "watchkeeper.cost.usd"
PRESUMED_COST: Final = "watchkeeper.cost.presumed_usd"
HINT_COST: Final = "watchkeeper.cost.hint_usd"
PRESUMED_INPUT: Final = "watchkeeper.usage.presumed.input_tokens"
PRESUMED_OUTPUT: Final = "watchkeeper.usage.presumed.output_tokens"
HINT_INPUT: Final = "watchkeeper.usage.hint.input_tokens"
HINT_OUTPUT: Final = "watchkeeper.usage.hint.output_tokens"
TOTAL: Final = "watchkeeper.usage.total."
"""Begins the names of what a run and all runs below it have used."""

SAFETY_EVENT: Final = "watchkeeper.safety_event"
ASSESSMENT: Final = "watchkeeper.assessment"
STATE: Final = "watchkeeper.state"
EVENT: Final = "watchkeeper."
"""Begins the names of other events, whose rest is the tag of the event on the log."""
