// What an answer has besides its text: the reasoning before it, and calls of tools. Both are only ever set as text.

import { copyButton, h } from "./elements.js";

/** A fold that is open while there is nothing but reasoning. Once the reader has used it, it stays as it is. */
export class Reasoning {
  constructor() {
    this.label = h("span", {});
    this.text = document.createTextNode("");
    this.fold = h(
      "details",
      { class: "reasoning" },
      h("summary", { onclick: () => (this.used = true) }, this.label),
      h("div", { class: "reasoning-text", dir: "auto" }, this.text),
    );
    this.used = false;
    this.alone = false;
    this.element = h("div", { class: "reasoning-slot" });
  }

  update({ reasoning = "", content, calls }, running) {
    if (!reasoning) return;
    if (!this.fold.isConnected) this.element.replaceChildren(this.fold);
    this.text.appendData(reasoning.slice(this.text.length));
    const alone = !content && !calls?.length;
    this.label.textContent = running && alone ? "Reasoning…" : "Reasoning";
    if (alone !== this.alone && !this.used) this.fold.open = alone;
    this.alone = alone;
  }
}

/** The calls of tools, as far as they have come. Nothing here runs them. */
export function callViews(calls = []) {
  return calls.map(({ name, arguments: text }) => {
    const code = h("pre", { tabindex: "0", role: "region", "aria-label": `Arguments of ${name}` }, h("code", {}, text));
    const head = h("figcaption", {}, h("span", {}, `Call of ${name}`), copyButton(() => text, "Copy", "tool small"));
    return h("figure", { class: "code call" }, head, code);
  });
}

/** Adds a chunk's pieces of calls to those that have come. */
export function addCalls(calls, pieces) {
  for (const { index, function: piece = {} } of pieces) {
    calls[index] ??= { name: "", arguments: "" };
    calls[index].name += piece.name ?? "";
    calls[index].arguments += piece.arguments ?? "";
  }
  return calls;
}
