// Shows one answer, whole or still coming. Its actions are callbacks; nothing here talks to the server.

import { hideCard } from "./card.js";
import { copyButton, h, tool } from "./elements.js";
import { renderMarkdown } from "./markdown.js";
import { Reasoning, callViews } from "./parts.js";
import { places } from "./resuming.js";
import { counted, hasBegun } from "./stream.js";
import { renderStructured } from "./structured.js";
import { TokenView } from "./tokens.js";

export class Answer {
  /**
   * `again()` asks for another version; `resume(place, token)` goes on from the end, or from a place with another
   * token, and is null if it cannot; `versions` are the nodes that switch among versions; `last` ends the path;
   * `start()` and `showSetting(name)` lead to what helps when the model's context, of `contextLength`, is full.
   */
  constructor(message, { again, resume, versions, last, contextLength, start, showSetting }) {
    Object.assign(this, { message, again, resume, versions, last, contextLength, start, showSetting });
    this.frame = 0;
    this.reasoning = new Reasoning();
    this.body = h("div", { class: "prose" });
    this.calls = h("div", { class: "calls" });
    this.tokens = null;
    this.footer = h("div", { class: "tools" });
    this.note = h("div", { class: "note-slot" });
    const parts = [this.reasoning.element, this.body, this.calls, this.note, this.footer];
    const label = message.model ? `Answer of ${message.model}` : "Answer";
    this.element = h("article", { class: "message answer", "aria-label": label }, parts);
    this.drawn = false;
  }

  /** Call it once at first. Later calls, while the answer runs, draw at most once per frame. */
  update(running) {
    this.running = running;
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
    if (message.form === "json") renderStructured(this.body, message.content, !this.running);
    else renderMarkdown(this.body, message.content);
    this.calls.replaceChildren(...callViews(message.calls));
    this.note.replaceChildren(...(this.running ? [] : this.notes()));
    if (!this.running) this.drawFooter();
    else this.footer.replaceChildren();
  }

  drawFooter() {
    const { message } = this;
    const tools = [...this.versions];
    if (message.content) tools.push(copyButton(() => message.content, "Copy"));
    if (this.last && isOpen(message) && !this.isFull && this.resume()) tools.push(tool("next", "Continue", () => this.resume()()));
    if (this.last) tools.push(tool("again", message.error ? "Try again" : "Regenerate", this.again));
    if (message.tokens?.length) tools.push(this.tokenToggle());
    this.footer.replaceChildren(...tools, figures(message));
  }

  /** Whether it ended because prompt and answer fill the context. */
  get isFull() {
    const { finish, usage } = this.message;
    return finish === "length" && usage?.total_tokens >= this.contextLength;
  }

  /** What is to be said of how the answer ended. */
  notes() {
    const { error, stopped, finish } = this.message;
    if (error) {
      const what = hasBegun(this.message) ? "Stopped early." : "No answer.";
      const overflow = error.code === "context_length_exceeded" ? this.overflow(error) : null;
      const text = overflow ?? [` ${errorText(error)}`];
      return [h("div", { class: "error-note", role: "alert" }, h("strong", {}, what), text)];
    }
    if (stopped) return [h("p", { class: "quiet-note" }, "Stopped.")];
    if (finish !== "length") return [];
    const text = `Cut off at ${tokens(counted(this.message))}`;
    if (!this.isFull) return [h("p", { class: "quiet-note" }, `${text}.`)];
    return [h("div", { class: "quiet-note" }, `${text}: the model's context is full.`, this.newChat())];
  }

  /** In terms of this page, where the server's words are about fields of a request. */
  overflow({ param }) {
    const label = { max_tokens: "Longest answer", min_tokens: "Shortest answer" }[param];
    if (label) {
      const show = h("button", { type: "button", class: "button small", onclick: () => this.showSetting(param) }, label);
      return [` The conversation and the “${label}” of the settings do not fit into the model's context.`, row(show)];
    }
    return [" The conversation does not fit into the model's context. Edit a message to shorten it.", this.newChat()];
  }

  newChat() {
    return row(h("button", { type: "button", class: "button small", onclick: this.start }, "New chat"));
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
      this.tokens = new TokenView((place) => this.choices(place));
      this.tokens.update(this.message.tokens ?? []);
      this.body.replaceWith(this.tokens.element);
    }
  }

  /** What takes an alternative at this place, for each that can be taken. */
  choices(place) {
    const resume = this.running ? null : this.resume();
    if (!resume || places(this.message)[place] === null) return null;
    return (token) => (isPickable(token) ? () => resume(place, token) : null);
  }
}

/** Whether the answer ended before the model was done. */
const isOpen = ({ error, stopped, finish }) => Boolean(error || stopped || finish === "length");

const isPickable = ({ text, id }) => Number.isInteger(id) && text !== "" && !/^(\\x[0-9A-F]{2})+$/.test(text);

const row = (button) => h("div", { class: "row" }, button);

const errorText = ({ message, retryAfter }) => (retryAfter ? `${message} Try again in ${retryAfter} s.` : message);

const tokens = (count) => `${count} token${count === 1 ? "" : "s"}`;

/** "smollm2-135m · 128 tokens · 42 tok/s · first token after 0.21 s". A line breaks between two figures, not in one. */
function figures(message) {
  const { model, timing } = message;
  const parts = [];
  if (counted(message)) parts.push(tokens(counted(message)));
  if (timing?.rate) parts.push(`${timing.rate >= 100 ? Math.round(timing.rate) : timing.rate.toFixed(1)} tok/s`);
  if (timing?.first !== undefined)
    parts.push(`first token after ${timing.first < 10 ? timing.first.toFixed(2) : timing.first.toFixed(0)} s`);
  const shown = parts.map((text, i) => h("span", { class: "figure" }, i + 1 < parts.length ? `${text} ·` : text));
  const name = model ? h("span", { class: "of-model" }, parts.length ? `${model} · ` : model) : null;
  return h("span", { class: "figures" }, name, ...shown.flatMap((part) => [part, " "]));
}
