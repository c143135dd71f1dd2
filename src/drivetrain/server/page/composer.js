// The message box: text, what goes with it, and the one button that sends or stops.

import { Attachments } from "./attachments.js";
import { byId, dress, fit } from "./elements.js";

export class Composer {
  /** `send(draft)` returns whether it took the message; `stop()` stops the answer in progress. */
  constructor({ send, stop, changed }) {
    this.handlers = { send, stop, changed };
    this.busy = false;
    this.enabled = false;
    this.area = byId("message");
    this.button = byId("send");
    this.attached = new Attachments({ changed: () => this.changed(), removed: () => this.area.focus() });
    dress(byId("attach"), "clip");
    this.listen();
    this.show();
  }

  /** What would be sent. */
  get draft() {
    const { images, files } = this.attached;
    return { content: this.area.value.trim(), images, files };
  }

  /** As it was typed. */
  get state() {
    return { ...this.draft, content: this.area.value };
  }

  /** What the loaded model accepts. */
  allow({ enabled, vision, maxImages, placeholder }) {
    this.enabled = enabled;
    this.area.placeholder = placeholder;
    this.area.disabled = !enabled;
    this.attached.allow({ vision, maxImages });
    this.show();
  }

  /** Puts back what was being written. */
  restore({ content, images, files }) {
    this.area.value = content;
    this.attached.set({ images, files });
  }

  setBusy(busy) {
    this.busy = busy;
    this.show();
  }

  listen() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.busy) this.handlers.stop();
      else this.submit();
    });
    this.area.addEventListener("input", () => this.changed());
    this.area.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.busy) this.submit();
    });
    this.area.addEventListener("paste", (event) => this.attached.take(event, event.clipboardData?.files));
  }

  submit() {
    if (!this.enabled || !this.handlers.send(this.draft)) return;
    this.restore({ content: "", images: [], files: [] });
  }

  changed() {
    fit(this.area);
    this.show();
    this.handlers.changed();
  }

  show() {
    const empty = !this.area.value.trim() && !this.attached.some;
    dress(this.button, this.busy ? "stop" : "send");
    this.button.setAttribute("aria-label", this.busy ? "Stop" : "Send");
    this.button.title = this.busy ? "Stop (Esc)" : "Send (Enter)";
    this.button.classList.toggle("stop", this.busy);
    this.button.setAttribute("aria-disabled", String(!this.busy && (empty || !this.enabled)));
  }
}
