// The conversation on screen and the answers in progress. An answer goes on even if another conversation is opened.

import { ApiError, streamChat } from "./api.js";
import { announce, h } from "./elements.js";
import { AnswerMessage, UserMessage } from "./messages.js";
import { addCalls } from "./parts.js";
import { buildBody } from "./request.js";
import { saveConversation } from "./store.js";
import { compact } from "./tokens.js";

const SAVE_EVERY_MS = 1000;
const TITLE_CHARS = 60;

/**
 * `page` gives what the chat needs from its surroundings: `thread` (scrolls), `list` (holds the messages),
 * `model()`, `settings()`, `changed()` (titles, busy state), `welcome()` (a node for an empty conversation),
 * `needKey()` (a promise of whether there is a key now), `full()` (the browser's storage is full).
 */
export class Chat {
  constructor(page) {
    this.page = page;
    this.conversation = null;
    this.runs = new Map();
    this.views = new Map();
    this.pinned = true;
    page.thread.addEventListener("scroll", () => this.scrolled(), { passive: true });
    addEventListener("pagehide", () => this.runs.forEach((run) => saveConversation(run.conversation)));
  }

  get busy() {
    return this.runs.has(this.conversation?.id);
  }

  open(conversation) {
    this.conversation = this.runs.get(conversation.id)?.conversation ?? conversation;
    this.redraw();
    this.pinned = true;
    this.follow();
  }

  send(text, images = []) {
    if (this.busy || (!text && !images.length)) return false;
    const { messages } = this.conversation;
    messages.push({ role: "user", content: text, ...(images.length ? { images } : {}) });
    this.conversation.title ||= titleOf(text);
    this.answer();
    return true;
  }

  /** Drops the last answer and asks again. */
  again() {
    const { messages } = this.conversation;
    if (this.busy) return;
    while (messages.at(-1)?.role === "assistant") messages.pop();
    if (messages.length) this.answer();
  }

  /** Drops everything after the edited message: the conversation goes on from there. */
  edit(message, text) {
    const { messages } = this.conversation;
    this.stop();
    const at = messages.indexOf(message);
    if (at === 0) this.conversation.title = titleOf(text);
    messages.splice(at, messages.length, { ...message, content: text });
    this.answer();
  }

  stop() {
    const run = this.runs.get(this.conversation?.id);
    if (!run) return;
    run.abort.abort();
    this.end(run, { stopped: true });
  }

  /** Ends the answer without keeping it: its conversation is being deleted. */
  forget(id) {
    const run = this.runs.get(id);
    this.runs.delete(id);
    run?.abort.abort();
  }

  answer() {
    const conversation = this.conversation;
    const body = buildBody(this.page.model(), this.page.settings(), conversation, conversation.messages);
    const message = { role: "assistant", content: "", model: body.model };
    conversation.messages.push(message);
    const run = { conversation, message, body, abort: new AbortController(), started: performance.now(), saved: 0 };
    this.runs.set(conversation.id, run);
    this.keep(run);
    this.redraw();
    this.pinned = true;
    this.follow();
    announce("Waiting for the answer");
    this.page.changed();
    this.stream(run);
  }

  async stream(run) {
    try {
      for await (const chunk of streamChat(run.body, run.abort.signal)) {
        if (!this.isCurrent(run)) return;
        this.take(run, chunk);
      }
      this.end(run, {});
    } catch (error) {
      if (!this.isCurrent(run)) return;
      this.end(run, { error: described(error) });
      if (error.status === 401 && (await this.page.needKey()) && this.conversation === run.conversation) this.again();
    }
  }

  isCurrent(run) {
    return this.runs.get(run.conversation.id) === run;
  }

  take(run, chunk) {
    const { message } = run;
    const choice = chunk.choices?.[0];
    const delta = choice?.delta ?? {};
    const [text, reasoning, calls] = [delta.content, delta.reasoning_content, delta.tool_calls ?? []];
    const now = performance.now();
    if (text || reasoning || calls.length) {
      run.first ??= now;
      run.latest = now;
    }
    if (text) message.content += text;
    if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
    if (calls.length) message.calls = addCalls(message.calls ?? [], calls);
    const tokens = compact(choice?.logprobs);
    if (tokens.length) (message.tokens ??= []).push(...tokens);
    if (choice?.finish_reason) message.finish = choice.finish_reason;
    if (chunk.usage) message.usage = chunk.usage;
    if (now - run.saved > SAVE_EVERY_MS) this.keep(run);
    this.views.get(message)?.update(true);
    this.follow();
  }

  end(run, outcome) {
    const { message, conversation } = run;
    this.runs.delete(conversation.id);
    Object.assign(message, outcome);
    message.timing = timing(run);
    conversation.updated = Date.now();
    this.keep(run);
    this.views.get(message)?.update(false, true);
    this.follow();
    announce(announcement(message));
    this.page.changed();
  }

  keep(run) {
    run.saved = performance.now();
    if (!saveConversation(run.conversation)) this.page.full();
  }

  redraw() {
    this.views.clear();
    const { messages } = this.conversation;
    const nodes = messages.map((message) => this.view(message, message === messages.at(-1)).element);
    this.page.list.replaceChildren(...(nodes.length ? nodes : [this.page.welcome()]));
  }

  view(message, last) {
    if (message.role === "user") return new UserMessage(message, (text) => this.edit(message, text));
    const view = new AnswerMessage(message, () => this.again());
    const run = this.runs.get(this.conversation.id);
    view.update(run?.message === message, last);
    this.views.set(message, view);
    return view;
  }

  /** Stays at the end of a growing answer unless the reader scrolled away from it. */
  follow() {
    if (!this.pinned) return;
    requestAnimationFrame(() => requestAnimationFrame(() => this.pinned && this.toEnd()));
  }

  toEnd() {
    this.page.thread.scrollTop = this.page.thread.scrollHeight;
    this.pinned = true;
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.page.thread;
    this.pinned = scrollHeight - scrollTop - clientHeight < 48;
    this.page.away(!this.pinned);
  }
}

/** What an empty conversation shows: what this is, and a few ways to begin. */
export function welcome(title, text, suggestions, use) {
  const buttons = suggestions.map((suggestion) =>
    h("button", { type: "button", class: "suggestion", onclick: () => use(suggestion) }, suggestion),
  );
  return h(
    "div",
    { class: "welcome" },
    h("img", { src: "logo.svg", alt: "", width: "64", height: "64", decoding: "sync" }),
    h("h2", {}, title),
    h("p", {}, text),
    h("div", { class: "suggestions" }, buttons),
  );
}

function described(error) {
  if (error instanceof ApiError)
    return { message: error.message, status: error.status, code: error.code, retryAfter: error.retryAfter };
  return { message: "Something went wrong on this page." };
}

function timing({ started, first, latest, message }) {
  if (first === undefined) return {};
  const tokens = message.usage?.completion_tokens ?? message.tokens?.length ?? 0;
  const seconds = (latest - first) / 1000;
  return { first: (first - started) / 1000, rate: tokens > 1 && seconds > 0.005 ? (tokens - 1) / seconds : 0 };
}

function announcement({ error, stopped, content, calls = [] }) {
  if (error) return ""; // The error note is itself an alert.
  const said = [content.slice(0, 4000), ...calls.map(({ name }) => `Call of ${name}.`)].filter(Boolean).join(" ");
  return stopped ? "Stopped." : `Answer: ${said}`;
}

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > TITLE_CHARS ? `${line.slice(0, TITLE_CHARS - 1).trimEnd()}…` : line || "Image";
}
