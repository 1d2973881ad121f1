// Listens at an abstract socket, as a run's worker would, and prints what hooks say there, a line each. A program of its own: the
// Node that runs the tests may be one that fills such a socket's name up with zeros.
import net from "node:net";

const server = net.createServer((socket) => {
  let text = "";
  socket.on("error", () => {}).setEncoding("utf8").on("data", (piece) => {
    text += piece;
    if (!text.endsWith("\n")) return;
    process.stdout.write(text);
    socket.end('{"noted":{}}\n');
  });
});
server.listen(`\0${process.argv[2]}`, () => console.log("{}"));
