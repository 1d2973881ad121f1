"""A server that speaks 2026-07-28, without handshake or session: the Python SDK's, on a port of loopback."""

import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("modern")


@server.tool()
def echo(message: str) -> str:
    """Says what it is told."""
    return f"Echo: {message}"


@server.tool(name="get-sum")
def get_sum(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}"


@server.tool(name="get-tiny-image")
def get_tiny_image() -> list:
    """A picture with a text before and behind it."""
    from mcp.types import ImageContent, TextContent

    png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    text = lambda said: TextContent(type="text", text=said)
    return [text("before"), ImageContent(type="image", data=png, mime_type="image/png"), text("behind")]


server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
