// What is in force for the next message besides its text: a chip for the JSON schema of the conversation.

import { byId, h, icon } from "./elements.js";

let drawn = null;

/** `open()` leads to the schema, `drop()` takes it off. */
export function drawInForce(model, { response_format: form }, { open, drop }) {
  const shown = model?.parameters.has("response_format") && form ? form.json_schema.schema : null;
  const name = shown && (typeof shown.title === "string" && shown.title ? `JSON: ${shown.title}` : "JSON schema");
  if (name === drawn) return; // The focus may be on it.
  drawn = name;
  const row = byId("in-force");
  row.hidden = !name;
  const change = { type: "button", class: "chip-name", title: "Show it in the settings", onclick: open };
  const remove = { type: "button", class: "icon-button", "aria-label": "Answer without the JSON schema", onclick: drop };
  const chip = () => h("div", { class: "chip" }, h("button", change, icon("braces"), h("span", {}, name)), h("button", remove, icon("close")));
  row.replaceChildren(...(name ? [chip()] : []));
}
