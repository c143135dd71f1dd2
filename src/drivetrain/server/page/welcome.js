// What an empty conversation shows: what this is, and a few ways to begin.

import { h } from "./elements.js";

const SUGGESTIONS = [
  "Explain how a bicycle drivetrain works",
  "Write four lines about rain in spring",
  "List three unusual uses of a paper clip",
];

/** For the model that was chosen, or for the `problem` that there is none. `ask(text)` sends a suggestion. */
export function welcome(model, problem, ask) {
  if (!model) return node(problem ? "Not connected" : "One moment", problem || "Connecting to the server.");
  if (model.chat) {
    const state = model.known ? `${model.id} is ready` : `${model.id} will be loaded by your first message`;
    const text = `${state}. What you write stays between this browser and this server.`;
    return node("What shall we talk about?", text, SUGGESTIONS, ask);
  }
  const use = model.generation
    ? "It completes plain prompts. Use /v1/completions."
    : "It produces embeddings, not text. Use /v1/embeddings.";
  return node("This model cannot chat", use);
}

function node(title, text, suggestions = [], ask = null) {
  const buttons = suggestions.map((suggestion) =>
    h("button", { type: "button", class: "suggestion", onclick: () => ask(suggestion) }, suggestion),
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
