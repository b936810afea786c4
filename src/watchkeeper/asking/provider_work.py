"""What the fields of a request make a provider do beside answering, and which of them a ceiling lets pass.

A request is bounded by its bytes and its cap on the output if the provider only reads it and answers. Fields that are
known to do no more pass. Fields that make it search, run tools, read what it has stored or ask other models need a
bound from the caller under a ceiling on cost or tokens. A field that is not known here may do any of that, so it needs
one, too, where such a ceiling was named. Runs and contained clients follow this one rule. Nothing here sends anything.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any, Final, cast

from watchkeeper.accounting.account import COST, Account
from watchkeeper.accounting.limits import Limits
from watchkeeper.core.errors import ConfigurationError
from watchkeeper.core.meters import SHARED
from watchkeeper.core.model import ModelSettings, extra_fields

TOOLS_OVERHEAD: Final = 1024
"""Upper bound of what providers add to the prompt when tools are present (Anthropic documents 313 to 804)."""

USED_BY_INPUT: Final = tuple(
    place for place, meter in enumerate(SHARED) if not meter.is_counted and meter.column != "output_tokens"
)
"""The places of the meters whose ceilings hold only if the input of a call is bounded."""

DEFAULTS: Final = Limits()

OWN_TOOLS: Final = frozenset(
    {"", "function", "custom", "local_shell", "apply_patch", "computer", "bash", "text_editor", "memory"}
)
"""Types of tools that the caller runs; all others run at the provider and add to the input by themselves."""

OWN_VERSIONS: Final = ("computer_", "bash_", "text_editor_", "memory_")
"""What further types begin with that are versions of those."""

PLAIN_TOOLS: Final = (None, "", "function", "custom")
"""Types of tools whose definitions are in the request; of other tools that the caller runs it has only names."""

DEFINED_BY: Final = ("name", "function", "custom")
"""One of these fields is in every tool whose definition is in the request; Gemini's own tools have no type either."""

AT_THE_PROVIDER: Final = (
    *("web_search_options", "search_parameters", "plugins", "mcp_servers", "thread", "prompt"),
    "data_sources",  # Azure
    "enable_search",  # Alibaba
    "vector_store_ids",  # LiteLLM
    "preset",  # OpenRouter
)
"""Fields of a request that make the provider search, run tools, or put in what it has stored, by itself."""

AGENTS: Final = (
    *("a2a/", "langflow/", "langgraph/", "bedrock/agent/", "bedrock/agentcore/"),
    *("vertex_ai/agent_engine/", "azure_ai/agents/"),
)
"""What the names of agents behind LiteLLM begin with, which get no cap on the output and call models by themselves."""

OTHER_MODELS: Final = ("models", "fallbacks")
"""Fields that let the provider ask models that it was not asked for."""

SUMMARIES: Final = ("context_management", "compaction")
"""Fields that may ask for a summary of the conversation."""

PLAIN_FIELDS: Final = frozenset(
    {
        # Chat Completions, Responses, Messages and Embeddings
        *("background", "cache_control", "diagnostics", "dimensions", "encoding_format", "frequency_penalty"),
        *("function_call", "functions", "include", "inference_geo", "instructions", "logit_bias", "logprobs"),
        *("max_tool_calls", "metadata", "modalities", "n", "output_config", "output_format", "parallel_tool_calls"),
        *("prediction", "presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
        *("reasoning", "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier", "speed"),
        *("stop", "stop_sequences", "store", "stream", "stream_options", "system", "temperature", "text", "thinking"),
        *("tool_choice", "top_k", "top_logprobs", "top_p", "truncation", "user", "verbosity"),
        # Servers of open models: vLLM, llama.cpp, SGLang, Ollama
        *("add_generation_prompt", "allowed_token_ids", "bad_words", "cache_prompt", "cache_salt"),
        *("chat_template_kwargs", "continue_final_message", "grammar", "guided_choice", "guided_decoding_backend"),
        *("guided_grammar", "guided_json", "guided_regex", "ignore_eos", "include_stop_str_in_output", "json_schema"),
        *("keep_alive", "length_penalty", "min_p", "min_tokens", "mirostat", "mirostat_eta", "mirostat_tau"),
        *("priority", "prompt_logprobs", "repeat_penalty", "repetition_penalty", "request_id", "return_token_ids"),
        *("separate_reasoning", "skip_special_tokens", "spaces_between_special_tokens", "stop_token_ids"),
        *("structured_outputs", "think", "timings_per_token", "typical_p"),
        # OpenRouter, DeepSeek, Alibaba, Z.ai, xAI, Groq, Mistral, Fireworks, Together, Gemini, Voyage
        *("context_length_exceeded_behavior", "deferred", "do_sample", "include_reasoning", "input_type"),
        *("output_dimension", "output_dtype", "perf_metrics_in_response", "provider", "random_seed"),
        *("reasoning_format", "route", "safety_settings", "session_id", "thinking_config"),
        *("thinking_level", "top_a", "transforms", "truncate", "usage", "user_id"),
        # LiteLLM
        *("allowed_openai_params", "api_version", "cache"),
        *("cache_control_injection_points", "caching", "drop_params", "extra_headers", "extra_query"),
        *("litellm_session_id", "litellm_trace_id", "organization", "tags", "timeout", "vertex_location"),
        "vertex_project",
    }
)
"""Fields that choose how a model answers, or what is kept or shown of it: they add no more than their bytes."""

KNOWN_FIELDS: Final = PLAIN_FIELDS.union(AT_THE_PROVIDER, OTHER_MODELS, SUMMARIES, ("tools",))
"""Those, and the fields whose values are looked at."""

THINKS: Final = "enable_thinking"
"""Off if it is False. Where it is known, the cap on the output does not bound what is thought
(https://docs.siliconflow.com/en/userguide/capabilities/reasoning), so it needs a bound, as ``thinking_budget`` does."""

OF_THE_ADAPTER: Final = frozenset(
    {"input", "max_completion_tokens", "max_output_tokens", "max_tokens", "messages", "model"}
)
"""Fields of requests that settings never set, whatever an interface calls its own: each adapter refuses them all."""

WRAPPERS: Final = ("extra_body", "google")
"""Fields that hold other fields (Gemini's own, in Chat Completions)."""

ADVISOR: Final = "advisor_"
"""What the type of a tool begins with that is another model, named in it."""

DRAWS: Final = "image_generation"
"""The type of a tool that lets another model draw, whose tokens are on the bill but in no count of the answer."""


def bounds_input(account: Account) -> bool:
    """Return whether a ceiling on cost or tokens is in force, so that nothing may be sent whose size has no bound.

    It may be that of a run, a block or a budget around: what is spent counts there, too.
    """
    return any(account.has_ceiling(place) for place in USED_BY_INPUT)


def names_spending(limits: Limits, given: Container[str] = ()) -> bool:
    """Return whether a ceiling on cost or tokens is named, rather than left at its default.

    Args:
        limits: The limits.
        given: Fields of theirs that were named even if they have the value of the default.
    """
    tops = ((meter, limits.ceiling(meter.ceiling)) for meter in SHARED if not meter.is_counted)
    return any(
        top is not None and (meter.field in given or top != DEFAULTS.ceiling(meter.ceiling)) for meter, top in tops
    )


def is_spending_named(account: Account) -> bool:
    """Return whether such a ceiling is named in an account or above it."""
    return any(names_spending(level.limits) for level in account.chain)


def runs_at_provider(tool: Any) -> bool:
    """Return whether a tool of a request runs at the provider."""
    if not isinstance(tool, Mapping):
        return False  # no tool: refused elsewhere
    kind = _type_of(tool)
    name = str(kind or "")
    own = name in OWN_TOOLS or name.startswith(OWN_VERSIONS)
    return not own or (kind in PLAIN_TOOLS and not any(name in tool for name in DEFINED_BY))


def tools_overhead(tools: Sequence[Any]) -> int:
    """Return an upper bound of what providers add to the prompt for tools, their definitions aside."""
    named_only = sum(_type_of(tool) not in PLAIN_TOOLS and not runs_at_provider(tool) for tool in tools)
    return TOOLS_OVERHEAD * (1 + named_only) if tools else 0


def _type_of(tool: Any) -> Any:
    return cast("Mapping[str, Any]", tool).get("type") if isinstance(tool, Mapping) else None


def searches_by_itself(model: str) -> bool:
    """Return whether a model, by its name, searches by itself and reads what it finds."""
    known = "search-api" in model or "deep-research" in model or model.endswith(":online")
    return known or any(part.startswith("compound") for part in model.split("/"))


def summarizes(name: str, value: object) -> bool:
    """Return whether one of `SUMMARIES` makes the provider summarize the conversation by itself."""
    return value is not None and (name == "compaction" or "compact" in str(value).lower())


def unknown_fields(fields: Mapping[str, Any], known: Collection[str] = KNOWN_FIELDS) -> list[str]:
    """Return the fields of a request of which nobody knows here what they make a provider do.

    Args:
        fields: The fields, decoded.
        known: Those that are known there; of fields in a wrapper only the plain ones are, because nobody looks at them.
    """
    found: list[str] = []
    for name, value in fields.items():
        if name in WRAPPERS and isinstance(value, Mapping):
            found += unknown_fields(cast("Mapping[str, Any]", value), PLAIN_FIELDS)
        elif name not in known and value is not None and (name, value) != (THINKS, False):  # False may switch others on
            found.append(name)
    return found


def check_extra_is_bounded(settings: ModelSettings, account: Account, model: str = "") -> None:
    """Refuse settings by which one call could exceed a ceiling, because the provider does more than answer.

    Args:
        settings: The settings of a model.
        account: That of the run: it knows the ceilings in force, its own and those around.
        model: The model's name, which may say that it searches by itself.

    Raises:
        ConfigurationError: If a ceiling on cost or tokens is in force, and `extra` lets other models answer under one
            on cost, or it or the model makes the provider work without a bound; if one was named, also for fields of
            `extra` that are not known here.
    """
    extra = extra_fields(settings)
    alone = ["it searches by itself"] if searches_by_itself(model) else []
    alone += ["it is an agent that works by itself"] if model.startswith(AGENTS) else []
    if not (extra or alone) or not bounds_input(account):
        return
    tools = cast("list[Any]", extra.get("tools")) if isinstance(extra.get("tools"), list | tuple) else []
    kinds = [str(tool.get("type") or ", ".join(tool)) for tool in tools if runs_at_provider(tool)]
    others = [name for name in OTHER_MODELS if _given(extra, name)]
    others += [kind for kind in kinds if kind.startswith((ADVISOR, DRAWS))]
    if others and account.has_ceiling(COST):
        raise ConfigurationError(
            f"ModelSettings.extra lets models answer ({', '.join(others)}) whose prices are not known before the call,"
            " so max_cost_usd could not be kept; name them in fallback=, or lift the ceiling"
        )
    if settings.extra_max_tokens is not None:
        return
    unknown = unknown_fields(extra, KNOWN_FIELDS | OF_THE_ADAPTER)
    if unknown and is_spending_named(account):
        raise ConfigurationError(
            f"nobody knows here how much {', '.join(unknown)} in ModelSettings.extra may add to a call, and a ceiling"
            " on cost or tokens is named; say the most tokens that this adds to one call,"
            " ModelSettings(extra_max_tokens=...), 0 if it adds none, or lift the ceiling"
        )
    found = [name for name in AT_THE_PROVIDER if _given(extra, name)] + others + kinds
    found += [name for name in SUMMARIES if summarizes(name, extra.get(name))]
    if found or alone:
        source = "ModelSettings.extra" if found else model
        found += alone
        raise ConfigurationError(
            f"{source} makes the provider do more than answer ({', '.join(dict.fromkeys(found))}), and a"
            " ceiling on cost or tokens is in force; say the most tokens that this adds to one call,"
            " ModelSettings(extra_max_tokens=...), or lift the ceiling"
        )


def _given(fields: Mapping[str, Any], name: str) -> bool:
    value: Any = fields.get(name)
    if value is None or value is False:
        return False
    return bool(value) or not isinstance(value, list | tuple)  # an empty object switches it on
