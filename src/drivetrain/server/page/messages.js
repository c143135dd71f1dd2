// Shows one message. Its actions are callbacks; nothing here talks to the server.

import { copyButton, h, icon } from "./elements.js";
import { renderMarkdown } from "./markdown.js";
import { Reasoning, callViews } from "./parts.js";
import { TokenView, hideCard } from "./tokens.js";

/** A user's message. `edit(text)` is called with the new text to send it again. */
export class UserMessage {
  constructor(message, edit) {
    this.message = message;
    this.edit = edit;
    this.element = h("article", { class: "message user", "aria-label": "You" });
    this.show();
  }

  show() {
    const { content, images = [] } = this.message;
    const pictures = images.map((src, i) => h("img", { src, alt: `Image ${i + 1} of this message`, loading: "lazy" }));
    this.element.replaceChildren(
      ...(pictures.length ? [h("div", { class: "pictures" }, pictures)] : []),
      ...(content ? [h("div", { class: "bubble" }, content)] : []),
      h(
        "div",
        { class: "tools" },
        tool("edit", "Edit", () => this.startEdit()),
        copyButton(() => content, "Copy"),
      ),
    );
  }

  startEdit() {
    const area = h("textarea", { "aria-label": "Edit your message", rows: "3" });
    area.value = this.message.content;
    const cancel = () => {
      this.show();
      this.element.querySelector(".tool").focus();
    };
    const save = () => area.value.trim() && this.edit(area.value.trim());
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") (event.stopPropagation(), cancel());
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) (event.preventDefault(), save());
    });
    area.addEventListener("input", () => fit(area));
    const buttons = h(
      "div",
      { class: "row end" },
      h("button", { type: "button", class: "button quiet small", onclick: cancel }, "Cancel"),
      h("button", { type: "button", class: "button primary small", onclick: save }, "Send again"),
    );
    this.element.replaceChildren(h("div", { class: "editor" }, area, buttons));
    fit(area);
    area.focus();
  }
}

/** An answer, whole or still coming. */
export class AnswerMessage {
  constructor(message, again) {
    this.message = message;
    this.frame = 0;
    this.reasoning = new Reasoning();
    this.body = h("div", { class: "prose" });
    this.calls = h("div", { class: "calls" });
    this.tokens = null;
    this.footer = h("div", { class: "tools" });
    this.note = h("div", { class: "note-slot" });
    const parts = [this.reasoning.element, this.body, this.calls, this.note, this.footer];
    this.element = h("article", { class: "message answer", "aria-label": "Answer" }, parts);
    this.again = again;
    this.drawn = false;
  }

  /** Call it once at first. Later calls, while the answer runs, draw at most once per frame. */
  update(running, last = false) {
    this.running = running;
    this.last = last;
    if (!running || !this.drawn) return this.draw();
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const { message } = this;
    this.drawn = true;
    this.element.classList.toggle("running", this.running);
    this.element.classList.toggle("waiting", this.running && !message.content);
    this.element.setAttribute("aria-busy", String(this.running));
    if (this.tokens) this.tokens.update(message.tokens ?? []);
    this.reasoning.update(message, this.running);
    renderMarkdown(this.body, message.content);
    this.calls.replaceChildren(...callViews(message.calls));
    this.note.replaceChildren(...this.notes());
    if (!this.running) this.drawFooter();
    else this.footer.replaceChildren();
  }

  notes() {
    const { error, stopped, finish } = this.message;
    if (this.running) return [];
    if (error)
      return [
        h("div", { class: "error-note", role: "alert" }, h("strong", {}, "No answer. "), errorText(this.message)),
      ];
    if (stopped) return [h("p", { class: "quiet-note" }, "Stopped.")];
    if (finish === "length") return [h("p", { class: "quiet-note" }, "Cut off: the token limit was reached.")];
    return [];
  }

  drawFooter() {
    const { message } = this;
    const tools = [];
    if (message.content) tools.push(copyButton(() => message.content, "Copy"));
    if (this.last) tools.push(tool("again", message.error ? "Try again" : "Regenerate", this.again));
    if (message.tokens?.length) tools.push(this.tokenToggle());
    this.footer.replaceChildren(...tools, h("span", { class: "figures" }, figures(message)));
  }

  tokenToggle() {
    const button = tool("tokens", "Tokens", () => {
      this.toggleTokens();
      button.setAttribute("aria-pressed", String(Boolean(this.tokens)));
    });
    button.setAttribute("aria-pressed", String(Boolean(this.tokens)));
    return button;
  }

  toggleTokens() {
    hideCard();
    if (this.tokens) {
      this.tokens.element.replaceWith(this.body);
      this.tokens = null;
    } else {
      this.tokens = new TokenView();
      this.tokens.update(this.message.tokens);
      this.body.replaceWith(this.tokens.element);
    }
  }
}

function tool(name, label, run) {
  return h("button", { type: "button", class: "tool", onclick: run }, icon(name), h("span", {}, label));
}

export function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

function errorText({ error, content, reasoning }) {
  const begun = content || reasoning ? "The answer was cut short: " : "";
  const later = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  return `${begun}${error.message}${later}`;
}

/** "128 tokens · 42 tok/s · first token after 0.21 s". */
function figures({ usage, timing }) {
  const parts = [];
  if (usage?.completion_tokens)
    parts.push(`${usage.completion_tokens} token${usage.completion_tokens === 1 ? "" : "s"}`);
  if (timing?.rate) parts.push(`${timing.rate >= 100 ? Math.round(timing.rate) : timing.rate.toFixed(1)} tok/s`);
  if (timing?.first !== undefined)
    parts.push(`first token after ${timing.first < 10 ? timing.first.toFixed(2) : timing.first.toFixed(0)} s`);
  return parts.join(" · ");
}
