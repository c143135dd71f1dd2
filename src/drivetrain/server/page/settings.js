// The settings panel: presets, the system prompt of the conversation, and the parameters of the model.

import { buildControls } from "./controls.js";
import { h } from "./elements.js";
import { presetRow } from "./presets.js";
import { saveConversation } from "./store.js";

export class SettingsPanel {
  /** `model()` and `conversation()` are those on screen; `changed()` is called after `settings` have changed. */
  constructor(container, { settings, model, conversation, changed }) {
    Object.assign(this, { container, settings, model, conversation, changed });
  }

  draw() {
    const model = this.model();
    const presets = presetRow({
      chosen: this.settings.preset,
      made: () => {
        const { system, response_format: form } = this.conversation();
        return { system, values: { ...this.settings.values, ...(form ? { response_format: form } : {}) } };
      },
      choose: (preset) => this.use(preset),
      named: (name) => {
        this.settings.preset = name;
        this.changed();
      },
    });
    this.container.replaceChildren(
      h("h2", { class: "visually-hidden" }, "Settings"),
      h("div", { class: "group" }, this.systemField(), presets),
      ...(model ? buildControls(model, this.settings, this.conversation(), (ofChat) => this.keep(ofChat)) : []),
    );
  }

  keep(ofChat = true) {
    const conversation = this.conversation();
    if (ofChat && conversation.messages.length) saveConversation(conversation);
    this.changed();
  }

  /** Takes the JSON schema off the conversation. */
  dropForm() {
    delete this.conversation().response_format;
    this.draw();
    this.keep();
  }

  /** A preset replaces the system prompt, the JSON schema and all values; none puts back the model's own, and an end to loops. */
  use({ name, system, values }) {
    const { response_format: form, ...others } = structuredClone(values);
    this.settings.preset = name;
    this.settings.values = others;
    Object.assign(this.conversation(), { system, response_format: form });
    this.draw();
    this.keep();
  }

  systemField() {
    const area = h("textarea", {
      id: "system",
      rows: "3",
      dir: "auto",
      placeholder: "You are a helpful assistant.",
      "aria-describedby": "system-help",
    });
    area.value = this.conversation()?.system ?? "";
    area.addEventListener("input", () => {
      this.conversation().system = area.value;
      this.keep();
    });
    const help = h(
      "p",
      { class: "help", id: "system-help" },
      "For this conversation only, from the next answer on.",
    );
    return h("div", { class: "field" }, h("label", { for: "system" }, "System prompt"), area, help);
  }
}
