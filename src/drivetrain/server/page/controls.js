// The settings, built from what the model can do: a control is there only if its parameter is listed.
// Groups are folded until the reader opens them.

import { h } from "./elements.js";
import { field } from "./fields.js";
import { canLogprobs } from "./model.js";
import { GROUPS } from "./parameters.js";

/** Nodes for all settings of the model. `changed(ofChat)` is called after `settings` or, of the chat, `conversation` changed. */
export function buildControls(model, settings, conversation, changed) {
  const groups = GROUPS.map(({ title, controls }) => {
    const shown = controls.filter(({ name }) => model.parameters.has(name));
    const valuesOf = ({ ofChat }) => (ofChat ? conversation : settings.values);
    const fields = shown.map((control) => field(control, model, valuesOf(control), () => changed(control.ofChat)));
    return fields.length ? fold(title, shown, fields, settings, changed) : null;
  });
  if (canLogprobs(model)) {
    const shown = [{ label: "Token probabilities" }];
    groups.push(fold("Shown with an answer", shown, [probabilitySwitch(settings, changed)], settings, changed));
  }
  return groups.filter(Boolean);
}

/** A group under its title and, while it is folded, the names of what is in it. */
function fold(title, shown, fields, settings, changed) {
  const names = h("span", { class: "group-holds" }, shown.map(({ label }) => label).join(", "));
  const group = h("details", { class: "group" }, h("summary", {}, h("span", {}, title), names), fields);
  group.open = settings.unfolded.includes(title);
  group.addEventListener("toggle", () => {
    const others = settings.unfolded.filter((other) => other !== title);
    settings.unfolded = group.open ? [...others, title] : others;
    changed();
  });
  return group;
}

function probabilitySwitch(settings, changed) {
  const box = h("input", {
    type: "checkbox",
    id: "control-logprobs",
    role: "switch",
    "aria-describedby": "control-logprobs-help",
  });
  box.checked = settings.tokens;
  box.addEventListener("change", () => {
    settings.tokens = box.checked;
    changed();
  });
  const head = h("div", { class: "field-head" }, h("label", { for: "control-logprobs" }, "Token probabilities"), box);
  const help = h(
    "p",
    { class: "help", id: "control-logprobs-help" },
    "Shows how likely each token of an answer was, and its alternatives.",
  );
  return h("div", { class: "field", "data-parameter": "logprobs" }, head, help);
}
