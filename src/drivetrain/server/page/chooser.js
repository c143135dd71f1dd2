// The line that names the model: a choice if the server has several, and a second model to set beside the first.

import { h, icon } from "./elements.js";
import { listModels } from "./model.js";

export class Chooser {
  /** `use(id)` and `useSecond(id)` (empty for none) are called with what was chosen. */
  constructor(container, { use, useSecond }) {
    Object.assign(this, { container, use, useSecond });
    this.models = [];
    this.dot = h("i", { class: "dot", "aria-hidden": "true" });
    this.state = h("span", { class: "state-word", role: "status" });
  }

  /** Whether the server is ready: the dot, and in words unless it is. */
  showState({ state, text }) {
    this.dot.dataset.state = state;
    this.state.textContent = text;
    this.state.classList.toggle("visually-hidden", state === "ready");
  }

  /** Lists the models; their ids. */
  async list() {
    this.models = await listModels();
    return this.models.map(({ id }) => id);
  }

  showQuiet(text) {
    this.container.replaceChildren(h("span", { class: "quiet" }, text));
  }

  showProblem(text, again) {
    const retry = h("button", { type: "button", class: "button small", onclick: again }, "Try again");
    this.container.replaceChildren(h("span", { class: "problem", role: "alert" }, text), retry);
  }

  show(id, second) {
    if (this.models.length === 1)
      return this.container.replaceChildren(this.dot, h("span", { class: "model-name" }, id), this.state);
    const compare = h(
      "button",
      {
        type: "button",
        class: "icon-button",
        "aria-label": "Two models side by side",
        title: "Two models side by side",
        "aria-pressed": String(Boolean(second)),
        onclick: () => this.toggle(id, second),
      },
      icon("columns"),
    );
    const selects = [this.select("Model", id, this.use)];
    if (second) selects.push(this.select("Second model", second, this.useSecond));
    const focused = this.container.contains(document.activeElement) ? document.activeElement.ariaLabel : null;
    this.container.replaceChildren(this.dot, ...selects, compare, this.state);
    if (focused) this.container.querySelector(`[aria-label="${focused}"]`)?.focus();
  }

  toggle(id, second) {
    const other = this.models.find((model) => model.id !== id);
    this.useSecond(second ? "" : other.id);
  }

  select(label, id, use) {
    const options = this.models.map((model) => h("option", { value: model.id }, titled(model)));
    const select = h("select", { "aria-label": label }, options);
    select.value = id;
    select.addEventListener("focus", () => this.relist(select));
    select.addEventListener("change", () => use(select.value));
    return select;
  }

  /** Models are loaded and unloaded without the page hearing of it. */
  async relist(select) {
    this.models = await listModels().catch(() => this.models);
    for (const option of select.options) {
      const model = this.models.find(({ id }) => id === option.value);
      if (model) option.textContent = titled(model);
    }
  }
}

const titled = ({ id, loaded }) => (loaded ? id : `${id} · not loaded`);
