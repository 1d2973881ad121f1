"""A client on the Python SDK, version 1 or 2: runs the steps of a plan, fails where one does not end as planned.

client.py FILE COMMAND ARG... or client.py FILE URL
"""

import json
import os
import pathlib
import sys

import anyio
import mcp

PLAN, COMMAND, *ARGS = sys.argv[1:]
PLAN = json.loads(pathlib.Path(PLAN).read_text())
VERSION = 2 if hasattr(mcp, "Client") else 1
if VERSION == 2:
    import mcp.client.session
    import mcp_types as types

    # A server that is slow to start on a busy machine is not one of the old era.
    mcp.client.session.DISCOVER_TIMEOUT_SECONDS = 600.0
else:
    from mcp import types
    from mcp.client.streamable_http import streamablehttp_client
IS_REMOTE = COMMAND.startswith("http://")
SERVER = mcp.StdioServerParameters(command=COMMAND, args=ARGS, env=dict(os.environ))
INFO = types.Implementation(name="example-client", version="7")


async def accept(context, params):
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def act(client, session, step):
    args = step.get("args", {})
    if "ping" in step:
        return await session.send_ping()
    if "wait" in step:
        return await anyio.sleep(step["wait"] / 1000)
    if "list" in step:
        listed = {
            "tools": client.list_tools,
            "resources": client.list_resources,
            "templates": client.list_resource_templates,
            "prompts": client.list_prompts,
        }
        return await listed[step["list"]]()
    if "read" in step:
        return await client.read_resource(step["read"])
    if "prompt" in step:
        return await client.get_prompt(step["prompt"], args)
    if "progress" not in step and "cancel" not in step:
        return await client.call_tool(step["call"], args)
    heard = []

    async def on_progress(progress, total, message):
        heard.append(progress)
        if "cancel" not in step or len(heard) > 1:
            return
        # Version 1 gives up without a word; its progress tokens are its requests' ids.
        if VERSION == 1:
            params = types.CancelledNotificationParams(requestId=session._request_id - 1, reason="changed my mind")
            note = types.CancelledNotification(method="notifications/cancelled", params=params)
            await session.send_notification(types.ClientNotification(note))
        scope.cancel()

    with anyio.CancelScope() as scope:
        result = await client.call_tool(step["call"], args, progress_callback=on_progress)
    assert heard, "no progress came"
    if scope.cancelled_caught:
        raise ValueError("cancelled")
    return result


async def run(client, session):
    for step in PLAN:
        why = None
        try:
            result = await act(client, session, step)
            failed = getattr(result, "isError", False) or getattr(result, "is_error", False)
        except AssertionError:
            raise
        except Exception as error:
            failed, why = True, error
        if bool(failed) != bool(step.get("fails")):
            raise SystemExit(f"{step}: {'failed' if failed else 'did not fail'}: {why!r}")


async def main():
    if VERSION == 2:
        async with mcp.Client(COMMAND if IS_REMOTE else SERVER, client_info=INFO, elicitation_callback=accept) as client:
            await run(client, client.session)
    else:
        transport = streamablehttp_client(COMMAND) if IS_REMOTE else mcp.stdio_client(SERVER)
        async with transport as (read, write, *_):
            async with mcp.ClientSession(read, write, client_info=INFO, elicitation_callback=accept) as session:
                await session.initialize()
                await run(session, session)


anyio.run(main)
