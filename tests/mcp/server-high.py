"""A server on the Python SDK's decorators: FastMCP in version 1, MCPServer in version 2."""

import anyio

try:
    from mcp.server.mcpserver import Context, MCPServer as Server
except ModuleNotFoundError:
    from mcp.server.fastmcp import Context, FastMCP as Server

server = Server("high")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def read_broken(path: str) -> str:
    """Always fails."""
    raise ValueError(f"cannot read {path}")


@server.tool()
async def count_slowly(steps: int, context: Context, pause: float = 0.3) -> str:
    """Says how far it is."""
    for step in range(steps):
        await context.report_progress(step + 1, steps)
        await anyio.sleep(pause)
    return "done"


@server.resource("note://one")
def note() -> str:
    """A note."""
    return "one: ü, \u2028, \"quoted\""


@server.prompt()
def ask(topic: str) -> str:
    """Asks."""
    return f"What of {topic}?"


server.run()
