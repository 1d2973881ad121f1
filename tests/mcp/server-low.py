"""A server on the Python SDK's low level. In version 2 it asks the client in the middle of a call: `input_required`."""

import anyio
import mcp.server.stdio

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def version_1():
    from mcp import types
    from mcp.server.lowlevel import Server

    server = Server("low", version="1")

    @server.list_tools()
    async def tools():
        return [types.Tool(name="greet", description="Greets.", inputSchema=SCHEMA)]

    @server.call_tool()
    async def call(name, arguments):
        if name != "greet":
            raise ValueError(f"no tool {name}")
        asked = await server.request_context.session.elicit("Who are you?", FORM)
        return [types.TextContent(type="text", text=f"Hello, {asked.content['name']}.")]

    return server


def version_2():
    import mcp_types as types
    from mcp.server.lowlevel import Server

    async def tools(context, params):
        return types.ListToolsResult(tools=[types.Tool(name="greet", description="Greets.", input_schema=SCHEMA)])

    async def call(context, params):
        if params.name != "greet":
            raise ValueError(f"no tool {params.name}")
        if context.session.can_send_request:
            asked = await context.session.elicit("Who are you?", FORM)
        elif not params.input_responses:
            form = types.ElicitRequestFormParams(message="Who are you?", requested_schema=FORM)
            question = types.ElicitRequest(params=form)
            return types.InputRequiredResult(input_requests={"who": question}, request_state="asked")
        else:
            asked = params.input_responses["who"]
        text = types.TextContent(type="text", text=f"Hello, {asked.content['name']}.")
        return types.CallToolResult(content=[text])

    return Server("low", version="1", on_list_tools=tools, on_call_tool=call)


async def main():
    server = version_2() if hasattr(mcp, "Client") else version_1()
    async with mcp.server.stdio.stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


anyio.run(main)
