// The conformance suite imports `globSync`, for a command that is not used here. Node has it since version 22.
import fs from "node:fs";
import { register } from "node:module";

if (!fs.globSync) {
  const shim = `export * from "node:fs"; export { default } from "node:fs"; export const globSync = () => [];`;
  const hooks = `export const resolve = (specifier, context, next) =>
    ["fs", "node:fs"].includes(specifier) && context.parentURL?.includes("/conformance/dist/")
      ? { url: ${JSON.stringify(`data:text/javascript,${encodeURIComponent(shim)}`)}, shortCircuit: true }
      : next(specifier, context);`;
  register(`data:text/javascript,${encodeURIComponent(hooks)}`);
}
