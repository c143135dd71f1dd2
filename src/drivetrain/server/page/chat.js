// The conversation on screen: what is sent, which branch of it is shown, and how its messages change.

import { announce } from "./elements.js";
import { Answer } from "./answer.js";
import { sideBySide } from "./pairs.js";
import { Question } from "./question.js";
import { buildBody } from "./request.js";
import { beginning, canResume, resume } from "./resuming.js";
import { Runs } from "./runs.js";
import { saveConversation } from "./store.js";
import { hasBegun } from "./stream.js";
import { add, pairOf, parentOf, path, remove, show, turnTo, versions } from "./tree.js";
import { versionSwitch } from "./versions.js";

const TITLE_CHARS = 60;

/**
 * `page` gives what the chat needs from its surroundings: `thread` (scrolls), `list` (holds the messages),
 * `models()` (the one that answers, and one beside it), `settings()`, `changed()` (titles, busy state), `grew()` (an
 * answer), `welcome()` (a node for an empty conversation), `needKey()` (a promise of whether there is a key now),
 * `full()` (the browser's storage is full), `start()` (a new chat), `showSetting(name)`.
 */
export class Chat {
  constructor(page) {
    this.page = page;
    this.conversation = null;
    this.runs = new Runs({ grew: (run) => this.grew(run), ended: (run) => this.ended(run), full: page.full });
    this.views = new Map();
    this.pinned = true;
    page.thread.addEventListener("scroll", () => this.scrolled(), { passive: true });
    new ResizeObserver(() => this.pinned && this.toEnd()).observe(page.thread); // The message box has grown, say.
  }

  get busy() {
    return this.runs.of(this.conversation?.id).length > 0;
  }

  /** The conversation itself if it is on screen or being answered: what is stored may be older. */
  live(id) {
    return this.conversation?.id === id ? this.conversation : (this.runs.of(id)[0]?.conversation ?? null);
  }

  open(conversation) {
    this.conversation = this.live(conversation.id) ?? conversation;
    this.redraw();
    this.pinned = true;
    this.follow();
  }

  send({ content, images = [], files = [] }) {
    if (this.busy || (!content && !images.length && !files.length)) return false;
    const { conversation } = this;
    conversation.title ||= titleOf(content) || files[0]?.name || "Image";
    this.answer(add(conversation, conversation.current, question(content, { images, files })));
    return true;
  }

  /** Asks for another version of an answer. One that never began is replaced. */
  again(message) {
    if (this.busy || !this.page.models()[0]) return;
    const question = parentOf(this.conversation, message);
    if (!hasBegun(message)) remove(this.conversation, message);
    this.answer(question);
  }

  /** Sends another version of a message: the conversation goes on from there. The old one stays in its branch. */
  edit(message, text) {
    const { conversation } = this;
    if (!this.page.models()[0]) return;
    this.stop();
    if (conversation.title === titleOf(message.content)) conversation.title = titleOf(text);
    this.answer(add(conversation, message.parent, question(text, message)));
  }

  /** Goes on with an answer, from its end or with another token at a place in it, as another version of it. */
  resume(message, place, token) {
    if (this.busy) return;
    const { conversation } = this;
    const [[model], settings] = [this.page.models(), this.page.settings()];
    show(conversation, message.parent);
    const before = path(conversation);
    const begun = add(conversation, message.parent, beginning(message, place, token));
    this.start([begun], () => (signal) => resume(model, settings, conversation, before, begun, signal));
    if (token) this.views.get(begun).toggleTokens();
  }

  stop() {
    this.runs.stop(this.conversation?.id);
  }

  /** Ends the answers without keeping them: their conversation is being deleted. */
  forget(id) {
    this.runs.forget(id);
  }

  /** Each model answers; the conversation goes on from the first one's answer unless another is chosen. */
  answer(question) {
    const { conversation } = this;
    show(conversation, question.id);
    const messages = path(conversation);
    const models = this.page.models();
    const bodies = models.map((model) => buildBody(model, this.page.settings(), conversation, messages));
    const answers = bodies.map((body) => add(conversation, question.id, empty(body)));
    if (answers.length > 1) for (const message of answers) message.pair = answers[0].id;
    show(conversation, answers[0].id);
    this.start(answers, (i) => () => ({ path: "v1/chat/completions", body: bodies[i] }));
  }

  start(messages, request) {
    messages.forEach((message, i) => this.runs.start(this.conversation, message, request(i)));
    this.redraw();
    this.pinned = true;
    this.follow();
    announce("Waiting for the answer");
    this.page.changed();
  }

  grew({ message }) {
    this.views.get(message)?.update(true);
    this.page.grew();
    this.follow();
  }

  async ended({ conversation, message }) {
    this.views.get(message)?.update(false);
    this.follow();
    announce(announcement(message));
    this.page.changed();
    if (message.error?.status === 401 && (await this.page.needKey()) && this.conversation === conversation)
      this.again(message);
  }

  /** Shows another version of a message where the one before it was, with the focus where it was. */
  turn(message, to, direction) {
    const before = this.views.get(message).element.getBoundingClientRect().top;
    turnTo(this.conversation, to);
    if (!saveConversation(this.conversation)) this.page.full();
    this.redraw();
    const { element } = this.views.get(to);
    this.page.thread.scrollTop += element.getBoundingClientRect().top - before;
    element.querySelector(`.to-${direction}`)?.focus();
    announce(element.querySelector(".versions")?.getAttribute("aria-label") ?? "");
    this.page.changed();
  }

  redraw() {
    this.views.clear();
    const messages = path(this.conversation);
    const nodes = messages.map((message) => this.node(message, message === messages.at(-1)));
    this.page.list.replaceChildren(...(nodes.length ? nodes : [this.page.welcome()]));
  }

  /** A message, or the answers of two models side by side. */
  node(message, last) {
    const pair = pairOf(this.conversation, message);
    if (pair.length < 2) return this.view(message, last).element;
    const goOn = (chosen) => {
      this.turn(chosen, chosen, "chosen");
      this.views.get(chosen).element.closest(".pair").querySelector(".side-head button").focus();
      announce(`The conversation goes on from the answer of ${chosen.model}`);
    };
    return sideBySide(pair, message, (each) => this.view(each, last && each === message).element, goOn);
  }

  view(message, last) {
    const turn = (to, direction) => this.turn(message, to, direction);
    const all = versions(this.conversation, message);
    const nodes = all.length > pairOf(this.conversation, message).length ? versionSwitch(all, message, turn) : [];
    const view =
      message.role === "user"
        ? new Question(message, { edit: (text) => this.edit(message, text), versions: nodes })
        : new Answer(message, {
            again: () => this.again(message),
            resume: () => this.resuming(message),
            versions: nodes,
            last,
            contextLength: this.page.models().find((model) => model?.id === message.model)?.contextLength ?? Infinity,
            start: this.page.start,
            showSetting: this.page.showSetting,
          });
    if (view instanceof Answer) view.update(this.runs.has(message));
    this.views.set(message, view);
    return view;
  }

  /** What goes on with this answer, or null if nothing can. */
  resuming(message) {
    const before = path(this.conversation).filter(({ id }) => id < message.id);
    if (!canResume(this.page.models()[0], before, message)) return null;
    return (place, token) => this.resume(message, place, token);
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

function question(content, { images = [], files = [] }) {
  return { role: "user", content, ...(images.length ? { images } : {}), ...(files.length ? { files } : {}) };
}

const empty = ({ model, response_format: form }) => ({
  ...{ role: "assistant", content: "", model },
  ...(form ? { form: "json" } : {}),
});

function announcement({ error, stopped, content, model, pair, calls = [] }) {
  if (error) return ""; // The error note is itself an alert.
  const said = [content.slice(0, 4000), ...calls.map(({ name }) => `Call of ${name}.`)].filter(Boolean).join(" ");
  return stopped ? "Stopped." : `${pair ? `Answer of ${model}` : "Answer"}: ${said}`;
}

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > TITLE_CHARS ? `${line.slice(0, TITLE_CHARS - 1).trimEnd()}…` : line;
}
