// The card beside a token: its probability and its alternatives. It comes with the pointer or the focus and goes with
// them. A click or Enter keeps it open, and its alternatives can then be taken instead, where that is possible.

import { byId, h, s } from "./elements.js";
import { percent, probability } from "./likelihood.js";

let pinned = null;

/** Does nothing while another token's card is kept open. */
export function showCard(span, token) {
  if (!pinned) draw(span, token, null);
}

/** `choose({ text, logprob, id })` is called with the alternative that was taken; null if none can be. */
export function pinCard(span, token, choose, byKeyboard) {
  draw(span, token, choose);
  const card = byId("token-card");
  const first = card.querySelector("button");
  if (!first) return;
  pinned = span;
  card.classList.add("pinned");
  card.setAttribute("role", "dialog");
  card.setAttribute("aria-label", "Take another token");
  if (byKeyboard) first.focus();
}

export function hideCard() {
  pinned = null;
  byId("token-card").hidden = true;
}

/** The focus goes `to` another element. A card that is kept open stays while it is on the token or in the card. */
export function focusLeft(to) {
  if (!pinned || !to || (to !== pinned && !byId("token-card").contains(to))) hideCard();
}

/** The pointer goes. A card that is kept open stays. */
export function pointerLeft() {
  if (!pinned) hideCard();
}

/** Hides the card, with the focus back on its token. False if there was none. */
export function dismissCard() {
  const card = byId("token-card");
  if (card.hidden) return false;
  if (card.contains(document.activeElement)) pinned?.focus();
  hideCard();
  return true;
}

/** On scrolling, the card stays with a focused token, and is hidden otherwise. */
export function followCard() {
  const span = pinned ?? document.activeElement?.closest(".token");
  if (byId("token-card").hidden) return;
  if (span?.isConnected) place(byId("token-card"), span.getClientRects()[0]);
  else hideCard();
}

function draw(span, token, choose) {
  const card = byId("token-card");
  const rows = token.a.length ? token.a : [[token.t, token.p]];
  const chosen = rows.findIndex(([text]) => text === token.t);
  const items = rows.map((row, i) => alternative(row, i === chosen, choose));
  if (chosen === -1) items.push(alternative([token.t, token.p], true, choose));
  card.classList.remove("pinned");
  card.setAttribute("role", "tooltip");
  card.removeAttribute("aria-label");
  card.replaceChildren(
    h("div", { class: "card-title" }, h("code", {}, quoted(token.t)), h("b", {}, percent(probability(token.p)))),
    h("ul", { onkeydown: move }, items),
  );
  if (card.querySelector("button")) card.append(h("p", { class: "card-note" }, "Take another one: a new branch"));
  card.hidden = false;
  place(card, span.getClientRects()[0] ?? span.getBoundingClientRect());
}

function alternative([text, logprob, id], chosen, choose) {
  const share = probability(logprob) ?? 0;
  const bar = s(
    "svg",
    { class: "bar", viewBox: "0 0 64 6", "aria-hidden": "true" },
    s("rect", { class: "bar-track", width: 64, height: 6, rx: 3 }),
    s("rect", { class: "bar-fill", width: (64 * share).toFixed(1), height: 6, rx: 3 }),
  );
  const cells = [h("code", {}, quoted(text)), bar, h("span", {}, percent(share))];
  const take = chosen ? null : choose?.({ text, logprob, id });
  if (!take) return h("li", { class: chosen ? "chosen" : null }, h("div", { class: "alternative" }, cells));
  const attributes = {
    type: "button",
    class: "alternative",
    "aria-label": `Take ${JSON.stringify(text)} instead, ${percent(share)}`,
    onmousedown: (event) => event.preventDefault(), // The focus stays on the token, and the card with it.
    onclick: () => (hideCard(), take()),
    onblur: (event) => focusLeft(event.relatedTarget),
  };
  return h("li", {}, h("button", attributes, cells));
}

function move(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const buttons = [...event.currentTarget.querySelectorAll("button")];
  const at = buttons.indexOf(document.activeElement);
  if (!step || at === -1) return;
  event.preventDefault();
  buttons[(at + step + buttons.length) % buttons.length].focus();
}

function place(card, box) {
  const gap = 8;
  const left = Math.max(gap, Math.min(box.left, innerWidth - card.offsetWidth - gap));
  const below = box.bottom + gap + card.offsetHeight < innerHeight;
  card.style.left = `${left}px`;
  card.style.top = `${below ? box.bottom + gap : Math.max(gap, box.top - card.offsetHeight - gap)}px`;
}

const quoted = (text) => (text === "" ? "∅" : text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣"));
