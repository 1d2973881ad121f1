"""The providers' own Python SDKs against an agent's HTTP endpoint: every step's outcome as one JSON object."""

import json
import sys

import anthropic
import openai

TOOLS = [{"name": "weather", "description": "The weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]


def with_anthropic(base, token):
    client = anthropic.Anthropic(base_url=base, api_key=token, max_retries=0)
    ask = dict(model="whatever", max_tokens=100)
    say = lambda text: [{"role": "user", "content": text}]
    whole = client.messages.create(messages=say("greet me"), **ask)
    with client.messages.stream(messages=say("greet me"), **ask) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    called = client.messages.create(messages=say("weather please"), tools=TOOLS, **ask)
    use = next(block for block in called.content if block.type == "tool_use")
    history = say("weather please") + [
        {"role": "assistant", "content": [{"type": "tool_use", "id": use.id, "name": use.name, "input": use.input}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "rain"}]},
    ]
    answered = client.messages.create(messages=history, tools=TOOLS, **ask)
    out = {
        "whole": whole.content[0].text, "model": whole.model, "pieces": pieces, "stop": final.stop_reason,
        "call": [use.name, use.input], "answered": answered.content[0].text,
        "models": [model.id for model in client.models.list()],
    }
    out["errors"] = errors(lambda text, **more: client.messages.create(messages=say(text), **ask, **more), anthropic)
    out["refused"] = refused(lambda: anthropic.Anthropic(base_url=base, api_key="sk-mine", max_retries=0).messages.create(messages=say("x"), **ask))
    return out


def with_openai(base, token):
    client = openai.OpenAI(base_url=base + "/v1", api_key=token, max_retries=0)
    ask = dict(model="whatever")
    say = lambda text: [{"role": "user", "content": text}]
    tools = [{"type": "function", "function": {"name": t["name"], "description": t["description"], "parameters": t["input_schema"]}} for t in TOOLS]
    whole = client.chat.completions.create(messages=say("greet me"), **ask)
    pieces, finish = [], None
    for chunk in client.chat.completions.create(messages=say("greet me"), stream=True, **ask):
        # As much code in the wild does it: every chunk has a choice.
        if chunk.choices[0].delta.content:
            pieces.append(chunk.choices[0].delta.content)
        finish = chunk.choices[0].finish_reason or finish
    called = client.chat.completions.create(messages=say("weather please"), tools=tools, **ask).choices[0].message
    use = called.tool_calls[0]
    history = say("weather please") + [called.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": use.id, "content": "rain"}]
    answered = client.chat.completions.create(messages=history, tools=tools, **ask)
    out = {
        "whole": whole.choices[0].message.content, "model": whole.model, "pieces": pieces, "stop": finish,
        "call": [use.function.name, json.loads(use.function.arguments)], "answered": answered.choices[0].message.content,
        "models": [model.id for model in client.models.list()],
    }
    out["errors"] = errors(lambda text, **more: client.chat.completions.create(messages=say(text), **ask, **more), openai)
    out["refused"] = refused(lambda: openai.OpenAI(base_url=base + "/v1", api_key="sk-mine", max_retries=0).chat.completions.create(messages=say("x"), **ask))
    return out


def with_responses(base, token):
    client = openai.OpenAI(base_url=base + "/v1", api_key=token, max_retries=0)
    ask = dict(model="whatever")
    tools = [{"type": "function", "name": t["name"], "description": t["description"], "parameters": t["input_schema"]} for t in TOOLS]
    whole = client.responses.create(input="greet me", **ask)
    events = list(client.responses.create(input="greet me", stream=True, **ask))
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    with client.responses.stream(input="greet me", **ask) as stream:
        final = stream.get_final_response()
    say = [{"role": "user", "content": "weather please"}]
    use = next(item for item in client.responses.create(input=say, tools=tools, **ask).output if item.type == "function_call")
    with client.responses.stream(input=say, tools=tools, **ask) as stream:
        streamed = next(item for item in stream.get_final_response().output if item.type == "function_call")
    history = say + [use.model_dump(exclude_none=True), {"type": "function_call_output", "call_id": use.call_id, "output": "rain"}]
    answered = client.responses.create(input=history, tools=tools, **ask)
    out = {
        "whole": whole.output_text, "model": whole.model, "pieces": pieces, "stop": events[-1].type, "final": final.output_text,
        "call": [use.name, json.loads(use.arguments)], "streamed": [streamed.name, json.loads(streamed.arguments)],
        "answered": answered.output_text, "models": [model.id for model in client.models.list()],
    }
    out["errors"] = errors(lambda text, **more: client.responses.create(input=text, **ask, **more), openai)
    try:
        client.responses.create(input="more", previous_response_id=whole.id, **ask)
    except openai.BadRequestError as error:
        out["errors"]["kept"] = error.body["message"]
    out["refused"] = refused(lambda: openai.OpenAI(base_url=base + "/v1", api_key="sk-mine", max_retries=0).responses.create(input="x", **ask))
    return out


def errors(create, sdk):
    """What the SDK makes of a rate limit, and of a stream that breaks."""
    out = {}
    try:
        create("be limited")
    except sdk.RateLimitError as error:
        out["limited"] = error.status_code
    try:
        # The SDKs end such a stream each in its own way; none may look whole.
        ends = [event for event in create("break off", stream=True) if is_end(event)]
        out["broken"] = f"{len(ends)} ends"
    except Exception as error:
        out["broken"] = "error"
    return out


def is_end(event):
    choices = getattr(event, "choices", None)
    return event.type in ("message_stop", "response.completed") if choices is None else any(choice.finish_reason for choice in choices)


def refused(create):
    try:
        create()
        return None
    except Exception as error:
        return getattr(error, "status_code", str(error))


run = {"anthropic": with_anthropic, "openai": with_openai, "responses": with_responses}[sys.argv[1]]
print(json.dumps(run(sys.argv[2], sys.argv[3])))
