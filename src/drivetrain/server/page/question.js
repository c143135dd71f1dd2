// Shows a message of the user, which can be edited and sent again.

import { copyButton, fit, h, tool } from "./elements.js";
import { fileView } from "./files.js";

export class Question {
  /** `edit(text)` sends the message anew as another version; `versions` are the nodes that switch among them. */
  constructor(message, { edit, versions }) {
    this.message = message;
    this.edit = edit;
    this.versions = versions;
    this.element = h("article", { class: "message user", "aria-label": "You" });
    this.show();
  }

  show() {
    const { content, images = [], files = [] } = this.message;
    const pictures = images.map((src, i) => h("img", { src, alt: `Image ${i + 1} of this message`, loading: "lazy" }));
    this.change = tool("edit", "Edit", () => this.startEdit());
    this.element.replaceChildren(
      ...(pictures.length ? [h("div", { class: "pictures" }, pictures)] : []),
      ...files.map(fileView),
      ...(content ? [h("div", { class: "bubble", dir: "auto" }, content)] : []),
      h("div", { class: "tools" }, this.versions, this.change, copyButton(() => content, "Copy")),
    );
  }

  startEdit() {
    const area = h("textarea", { "aria-label": "Edit your message", rows: "3", dir: "auto" });
    area.value = this.message.content;
    const cancel = () => {
      this.show();
      this.change.focus();
    };
    const { images, files } = this.message;
    const save = () => (area.value.trim() || images || files) && this.edit(area.value.trim());
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") (event.stopPropagation(), cancel());
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) (event.preventDefault(), save());
    });
    area.addEventListener("input", () => fit(area));
    const buttons = h(
      "div",
      { class: "row end" },
      h("button", { type: "button", class: "button quiet small", onclick: cancel }, "Cancel"),
      h("button", { type: "button", class: "button primary small", onclick: save }, "Send again"),
    );
    this.element.replaceChildren(h("div", { class: "editor" }, area, buttons));
    fit(area);
    area.focus();
  }
}
