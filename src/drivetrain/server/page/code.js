// The code panel: the request that this conversation would send next, as curl and as Python.

import { copyButton, h } from "./elements.js";
import { asCurl, asPython, buildBody, shortened } from "./request.js";
import { path } from "./tree.js";

export class CodePanel {
  /** `situation()` gives model, settings, conversation and draft, or null while no model is known. */
  constructor(container, situation) {
    this.situation = situation;
    this.wanted = false;
    this.curl = block("curl", () => this.text(asCurl));
    this.python = block("Python", () => this.text(asPython));
    container.append(
      h("h2", { class: "visually-hidden" }, "The request as code"),
      h("p", { class: "help" }, "The next request of this conversation, with the current settings."),
      this.curl.element,
      this.python.element,
    );
  }

  show(visible) {
    this.wanted = visible;
    this.draw();
  }

  draw() {
    if (!this.wanted) return;
    this.curl.code.textContent = shortened(this.text(asCurl));
    this.python.code.textContent = shortened(this.text(asPython));
  }

  text(write) {
    const now = this.situation();
    return now ? write(now.model, buildBody(now.model, now.settings, now.conversation, messages(now))) : "";
  }
}

/** With the message being written; if there is none, up to the last question. */
function messages({ conversation, draft }) {
  const sent = path(conversation);
  if (draft.content || draft.images.length || draft.files.length) return [...sent, { role: "user", ...draft }];
  while (sent.at(-1)?.role === "assistant") sent.pop();
  return sent.length ? sent : [{ role: "user", content: "Hello!" }];
}

function block(name, text) {
  const code = h("code", {});
  const body = h("pre", { tabindex: "0", role: "region", "aria-label": `The request as ${name}` }, code);
  const head = h("figcaption", {}, h("span", {}, name), copyButton(text, `Copy ${name}`, "tool small"));
  return { code, element: h("figure", { class: "code" }, head, body) };
}
