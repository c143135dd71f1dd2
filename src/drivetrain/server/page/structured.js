// Shows an answer that was asked for as JSON: as it comes while it grows, and set out in lines once it is whole.

import { colour } from "./colours.js";
import { h } from "./elements.js";

export function renderStructured(container, text, whole) {
  if (!text) return container.replaceChildren();
  const shown = whole && isJson(text) ? setOut(text) : text;
  const code = h("code", {}, shown);
  container.replaceChildren(h("pre", { class: "json", tabindex: "0", role: "region", "aria-label": "JSON" }, code));
  colour(code, "json");
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** The same JSON with line breaks. Parsing and writing it again would change large numbers and repeated names. */
export function setOut(json) {
  let [out, level] = ["", 0];
  const opened = () => out.endsWith("[") || out.endsWith("{");
  const newLine = () => `\n${"  ".repeat(level)}`;
  for (const [token] of json.matchAll(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/g)) {
    if (token === "}" || token === "]") {
      level--;
      out += opened() ? token : newLine() + token;
    } else {
      if (opened()) out += newLine();
      out += token;
      if (token === "{" || token === "[") level++;
      else if (token === ",") out += newLine();
      else if (token === ":") out += " ";
    }
  }
  return out;
}
