// The context meter: how much of the model's context the conversation on screen takes.

import { byId, h, s } from "./elements.js";
import { lengthOf } from "./stream.js";

const CHARS_PER_TOKEN = 4;
const ROUND = 2 * Math.PI * 7;

/** Tokens of these messages: what the server counted last, and an estimate of what came after that. */
export function used(messages) {
  let [count, exact] = [0, true];
  for (const message of messages) {
    const { usage, tokens, files = [] } = message;
    exact = Boolean(usage?.total_tokens);
    const chars = files.reduce((sum, { text }) => sum + text.length, lengthOf(message));
    count = exact ? usage.total_tokens : count + (tokens?.length || Math.ceil(chars / CHARS_PER_TOKEN));
  }
  return { count, exact };
}

/** Draws the meter; there is none for an empty conversation, or if the context is not known. */
export function drawMeter(messages, most) {
  const meter = byId("meter");
  meter.hidden = !messages.length || !most;
  if (meter.hidden) return;
  const { count, exact } = used(messages);
  const share = Math.min(1, count / most);
  const text = `${exact ? "" : "about "}${written(count)} of ${written(most)}`;
  meter.dataset.level = share > 0.95 ? "full" : share > 0.8 ? "high" : "low";
  meter.title = `The conversation takes ${text} tokens of the model's context`;
  meter.replaceChildren(ring(share), h("span", { class: "visually-hidden" }, "Context: "), h("span", {}, text));
}

function ring(share) {
  const circle = (name, length) =>
    s("circle", { class: name, cx: 9, cy: 9, r: 7, pathLength: ROUND, "stroke-dasharray": `${length} ${ROUND}` });
  const parts = [circle("ring-track", ROUND), circle("ring-fill", (ROUND * share).toFixed(2))];
  return s("svg", { class: "ring", viewBox: "0 0 18 18", "aria-hidden": "true" }, ...parts);
}

const written = (count) => count.toLocaleString("en");
