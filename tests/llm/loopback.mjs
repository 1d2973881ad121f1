// Preloaded into servers that would listen on every address of the machine.
import { Server } from "node:net";

const listen = Server.prototype.listen;
Server.prototype.listen = function (port, ...rest) {
  return typeof port === "object" ? listen.call(this, port, ...rest) : listen.call(this, { port: Number(port), host: "127.0.0.1" }, ...rest);
};
