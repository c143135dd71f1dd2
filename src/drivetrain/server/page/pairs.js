// The answers of two models side by side, each under its model's name. The conversation goes on from one of them.

import { h } from "./elements.js";

/** `view(message)` gives the element of an answer, `goOn(message)` is called if another one is chosen. */
export function sideBySide(pair, current, view, goOn) {
  return h(
    "div",
    { class: "pair", role: "group", "aria-label": "Answers side by side" },
    pair.map((message) => h("div", { class: "side" }, heading(message, message === current, goOn), view(message))),
  );
}

function heading(message, isCurrent, goOn) {
  const state = isCurrent
    ? h("span", { class: "going-on" }, "Goes on from here")
    : h("button", { type: "button", class: "tool", onclick: () => goOn(message) }, "Go on with this one");
  return h("div", { class: "side-head" }, h("strong", {}, message.model), state);
}
