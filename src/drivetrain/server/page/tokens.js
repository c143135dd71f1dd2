// The token view: each token of an answer, coloured by its probability, with the alternatives the model considered.
// One stop in the tab order; the arrow keys move among the tokens.

import { focusLeft, pinCard, pointerLeft, showCard } from "./card.js";
import { h } from "./elements.js";
import { percent, probability } from "./likelihood.js";

const STEPS = [0.9, 0.7, 0.4, 0.2, 0.05];

/** Tokens of a chunk in compact form: text, logprob, id and the alternatives; the bytes if they are not text. */
export function compact(logprobs) {
  return (logprobs?.content ?? logprobs?.entries ?? []).map((entry) => {
    const tops = entry.top_logprobs ?? entry.top ?? [];
    return {
      t: tokenText(entry),
      p: round(entry.logprob),
      a: tops.map((top) => [tokenText(top), round(top.logprob), top.id]),
      i: entry.id,
      ...(decoded(entry.bytes) === null ? { b: entry.bytes } : {}),
    };
  });
}

/** The view of one answer. Adding tokens to it later appends them. */
export class TokenView {
  /** `choose(place)` gives what to do with an alternative of a token, or null if it cannot be taken instead. */
  constructor(choose) {
    this.tokens = [];
    this.choose = choose;
    this.text = h("div", {
      class: "tokens",
      role: "group",
      "aria-label": "Tokens of the answer. Arrow keys move from token to token, Enter opens the alternatives.",
      onkeydown: (event) => this.move(event),
      onfocusin: (event) => this.show(event.target),
      onfocusout: (event) => focusLeft(event.relatedTarget),
      onpointerover: (event) => event.pointerType === "mouse" && this.show(event.target),
      onpointerout: (event) => event.pointerType === "mouse" && pointerLeft(),
      onclick: (event) => this.open(event.target.closest(".token")),
    });
    this.element = h("div", { class: "token-view" }, legend(), this.text);
  }

  update(tokens) {
    const fresh = tokens.slice(this.tokens.length);
    this.text.append(...fresh.map((token, i) => tokenElement(token, this.tokens.length + i)));
    this.tokens = tokens.slice();
  }

  move(event) {
    const at = Number(event.target.dataset?.index);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + 10, ArrowUp: at - 10, Home: 0, End: Infinity }[
      event.key
    ];
    if (Number.isNaN(at)) return;
    if (event.key === "Enter" || event.key === " ") return (event.preventDefault(), this.open(event.target, true));
    if (to === undefined) return;
    event.preventDefault();
    const spans = this.text.querySelectorAll(".token");
    const next = spans[Math.max(0, Math.min(spans.length - 1, to))];
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  show(target) {
    const span = target.closest?.(".token");
    if (span) showCard(span, this.tokens[Number(span.dataset.index)]);
  }

  /** Keeps the card open, with its alternatives as buttons. */
  open(span, byKeyboard = false) {
    if (!span) return;
    const place = Number(span.dataset.index);
    span.focus();
    pinCard(span, this.tokens[place], this.choose(place), byKeyboard);
  }
}

function tokenElement(token, index) {
  const share = probability(token.p);
  const step = share === null ? 0 : STEPS.findIndex((bound) => share >= bound);
  const label = `${JSON.stringify(token.t)}, ${percent(share)}${token.picked ? ", picked by you" : ""}`;
  return h(
    "span",
    {
      class: `token step-${step === -1 ? STEPS.length : step}${token.picked ? " picked" : ""}`,
      role: "button",
      tabindex: index === 0 ? "0" : "-1",
      "data-index": index,
      "aria-label": label,
      "aria-describedby": "token-card",
    },
    visible(token.t),
  );
}

function legend() {
  const bounds = ["90 % and up", "70 %", "40 %", "20 %", "5 %", "below"];
  const items = bounds.map((text, i) => h("span", {}, h("i", { class: `swatch step-${i}` }), text));
  return h("div", { class: "token-legend" }, h("span", { class: "legend-title" }, "Probability"), items);
}

/** The token's text; bytes that are not a whole character are written as hex. */
function tokenText({ token, bytes }) {
  if (!Array.isArray(bytes)) return String(token ?? "");
  return decoded(bytes) ?? bytes.map((byte) => `\\x${byte.toString(16).padStart(2, "0").toUpperCase()}`).join("");
}

/** Null if the bytes are not whole characters. */
function decoded(bytes) {
  if (!Array.isArray(bytes)) return "";
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes));
  } catch {
    return null;
  }
}

const visible = (text) => (text === "" ? "∅" : text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t"));
const round = (logprob) => (typeof logprob === "number" ? Math.round(logprob * 1e4) / 1e4 : null);
