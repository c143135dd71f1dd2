// The answers in progress. Each goes on, even if another conversation is opened, until it ends or is stopped.

import { ApiError, stream } from "./api.js";
import { saveConversation } from "./store.js";
import { counted, lengthOf, take } from "./stream.js";

const SAVE_EVERY_MS = 1000;

export class Runs {
  /** `grew(run)` is called after each chunk, `ended(run)` at the end, `full()` if the browser's storage is full. */
  constructor(handlers) {
    this.handlers = handlers;
    this.all = new Set();
    addEventListener("pagehide", () => this.all.forEach((run) => saveConversation(run.conversation)));
  }

  of(conversationId) {
    return [...this.all].filter(({ conversation }) => conversation.id === conversationId);
  }

  has(message) {
    return [...this.all].some((run) => run.message === message);
  }

  /** `request()` gives the path and the body to send, or a promise of them. */
  start(conversation, message, request) {
    const abort = new AbortController();
    const started = performance.now();
    const run = { conversation, message, request, abort, started, before: lengthOf(message), saved: 0 };
    this.all.add(run);
    this.keep(run);
    this.follow(run);
  }

  stop(conversationId) {
    for (const run of this.of(conversationId)) {
      run.abort.abort();
      this.end(run, { stopped: true });
    }
  }

  /** Ends the answers without keeping them: their conversation is being deleted. */
  forget(conversationId) {
    for (const run of this.of(conversationId)) {
      this.all.delete(run);
      run.abort.abort();
    }
  }

  async follow(run) {
    try {
      const { path, body } = await run.request(run.abort.signal);
      for await (const chunk of stream(path, body, run.abort.signal)) {
        if (!this.all.has(run)) return;
        this.add(run, chunk);
      }
      this.end(run, {});
    } catch (error) {
      this.end(run, { error: described(error) });
    }
  }

  add(run, chunk) {
    const now = performance.now();
    if (take(run.message, chunk) && run.first === undefined) Object.assign(run, { first: now, begun: lengthOf(run.message) });
    if (chunk.choices?.length) run.latest = now; // The last token may bring no text.
    if (now - run.saved > SAVE_EVERY_MS) this.keep(run);
    this.handlers.grew(run);
  }

  end(run, outcome) {
    if (!this.all.delete(run)) return;
    Object.assign(run.message, outcome, { timing: timing(run) });
    run.conversation.updated = Date.now();
    this.keep(run);
    this.handlers.ended(run);
  }

  keep(run) {
    run.saved = performance.now();
    if (!saveConversation(run.conversation)) this.handlers.full();
  }
}

function described(error) {
  if (error instanceof ApiError)
    return Object.fromEntries(["message", "status", "code", "param", "retryAfter"].map((name) => [name, error[name]]));
  return { message: "Something went wrong on this page." };
}

/** The rate is that of the tokens behind the first chunk, which may bring many of them, or all. */
function timing({ started, first, latest, before, begun, message }) {
  if (first === undefined) return {};
  const later = (lengthOf(message) - begun) / (lengthOf(message) - before);
  const tokens = (counted(message) - (message.before ?? 0)) * later;
  const seconds = (latest - first) / 1000;
  return { first: (first - started) / 1000, rate: tokens >= 1 && seconds > 0.005 ? tokens / seconds : 0 };
}
