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
      made: () => ({ system: this.conversation().system, values: this.settings.values }),
      choose: (preset) => this.use(preset),
      named: (name) => {
        this.settings.preset = name;
        this.changed();
      },
    });
    this.container.replaceChildren(
      h("h2", { class: "visually-hidden" }, "Settings"),
      h("div", { class: "group" }, this.systemField(), presets),
      ...(model ? buildControls(model, this.settings, this.changed) : []),
    );
  }

  /** A preset replaces the system prompt and all values; none puts back the model's own, and an end to loops. */
  use({ name, system, values }) {
    this.settings.preset = name;
    this.settings.values = structuredClone(values);
    this.setSystem(system);
    this.draw();
    this.changed();
  }

  setSystem(text) {
    const conversation = this.conversation();
    conversation.system = text;
    if (conversation.messages.length) saveConversation(conversation);
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
      this.setSystem(area.value);
      this.changed();
    });
    const help = h(
      "p",
      { class: "help", id: "system-help" },
      "For this conversation only, from the next answer on.",
    );
    return h("div", { class: "field" }, h("label", { for: "system" }, "System prompt"), area, help);
  }
}
