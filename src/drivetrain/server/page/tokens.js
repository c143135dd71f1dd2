// The token view: each token of an answer, coloured by its probability, with the alternatives the model considered.
// One stop in the tab order; the arrow keys move among the tokens.

import { byId, h, s } from "./elements.js";

const STEPS = [0.9, 0.7, 0.4, 0.2, 0.05];

/** Tokens of a chunk in compact form: text, logprob and the alternatives. */
export function compact(logprobs) {
  return (logprobs?.content ?? []).map((entry) => ({
    t: tokenText(entry),
    p: round(entry.logprob),
    a: (entry.top_logprobs ?? []).map((top) => [tokenText(top), round(top.logprob)]),
  }));
}

/** The view of one answer. Adding tokens to it later appends them. */
export class TokenView {
  constructor() {
    this.tokens = [];
    this.text = h("div", {
      class: "tokens",
      role: "group",
      "aria-label": "Tokens of the answer. Arrow keys move from token to token.",
      onkeydown: (event) => this.move(event),
      onfocusin: (event) => this.show(event.target),
      onfocusout: hideCard,
      onpointerover: (event) => event.pointerType === "mouse" && this.show(event.target),
      onpointerout: (event) => event.pointerType === "mouse" && hideCard(),
      onclick: (event) => event.target.closest(".token")?.focus(),
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
    if (to === undefined || Number.isNaN(at)) return;
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
}

function tokenElement(token, index) {
  const share = probability(token.p);
  const step = share === null ? 0 : STEPS.findIndex((bound) => share >= bound);
  const label = `${JSON.stringify(token.t)}, ${percent(share)}`;
  return h(
    "span",
    {
      class: `token step-${step === -1 ? STEPS.length : step}`,
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

function showCard(span, token) {
  const card = byId("token-card");
  const rows = token.a.length ? token.a : [[token.t, token.p]];
  const chosen = rows.findIndex(([text]) => text === token.t);
  const items = rows.map(([text, logprob], i) => alternative(text, logprob, i === chosen));
  if (chosen === -1) items.push(alternative(token.t, token.p, true));
  card.replaceChildren(
    h("div", { class: "card-title" }, h("code", {}, quoted(token.t)), h("b", {}, percent(probability(token.p)))),
    h("ul", {}, items),
  );
  card.hidden = false;
  place(card, span.getClientRects()[0] ?? span.getBoundingClientRect());
}

function alternative(text, logprob, chosen) {
  const share = probability(logprob) ?? 0;
  const bar = s(
    "svg",
    { class: "bar", viewBox: "0 0 64 6", "aria-hidden": "true" },
    s("rect", { class: "bar-track", width: 64, height: 6, rx: 3 }),
    s("rect", { class: "bar-fill", width: (64 * share).toFixed(1), height: 6, rx: 3 }),
  );
  return h("li", { class: chosen ? "chosen" : null }, h("code", {}, quoted(text)), bar, h("span", {}, percent(share)));
}

function place(card, box) {
  const gap = 8;
  const left = Math.max(gap, Math.min(box.left, innerWidth - card.offsetWidth - gap));
  const below = box.bottom + gap + card.offsetHeight < innerHeight;
  card.style.left = `${left}px`;
  card.style.top = `${below ? box.bottom + gap : Math.max(gap, box.top - card.offsetHeight - gap)}px`;
}

export function hideCard() {
  byId("token-card").hidden = true;
}

/** On scrolling, the card stays with a focused token, and is hidden otherwise. */
export function followCard() {
  const card = byId("token-card");
  const span = document.activeElement?.closest(".token");
  if (card.hidden) return;
  if (span) place(card, span.getClientRects()[0]);
  else hideCard();
}

/** The token's text; bytes that are not a whole character are written as hex. */
function tokenText({ token, bytes }) {
  if (!Array.isArray(bytes)) return String(token ?? "");
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes));
  } catch {
    return bytes.map((byte) => `\\x${byte.toString(16).padStart(2, "0").toUpperCase()}`).join("");
  }
}

const visible = (text) => (text === "" ? "∅" : text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t"));
const quoted = (text) => (text === "" ? "∅" : text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣"));
const round = (logprob) => (typeof logprob === "number" ? Math.round(logprob * 1e4) / 1e4 : null);
const probability = (logprob) => (logprob === null ? null : Math.exp(logprob));

function percent(share) {
  if (share === null) return "not predicted";
  if (share < 0.001) return "< 0.1 %";
  return `${(share * 100).toFixed(share > 0.9995 ? 0 : 1)} %`;
}
