// The list of conversations: open, start, delete (with a way back), export.

import { byId, download, dress, h, icon, toast } from "./elements.js";
import { deleteConversation, listConversations, saveConversation } from "./store.js";

export class Sidebar {
  /** `open(conversation)`, `start()`, `forget(id)` (it was deleted), `current()` (the id on screen). */
  constructor(handlers) {
    this.handlers = handlers;
    dress(byId("new-chat"), "plus", "New chat");
    dress(byId("export-all"), "download", "Export all");
    byId("new-chat").addEventListener("click", () => handlers.start());
    byId("export-all").addEventListener("click", () => exportAll());
  }

  draw() {
    const conversations = listConversations();
    const current = this.handlers.current();
    const list = byId("conversations");
    const focused = document.activeElement?.closest("#conversations button")?.dataset.name;
    list.replaceChildren(...conversations.map((conversation) => this.item(conversation, current)));
    if (focused) list.querySelector(`[data-name="${CSS.escape(focused)}"]`)?.focus();
    byId("export-all").hidden = !conversations.length;
  }

  item(conversation, current) {
    const title = conversation.title || "New chat";
    const open = h(
      "button",
      {
        type: "button",
        class: "open",
        title,
        "data-name": `open ${conversation.id}`,
        "aria-current": conversation.id === current ? "true" : null,
        onclick: () => this.handlers.open(conversation),
      },
      title,
    );
    return h(
      "li",
      {},
      open,
      small("download", `Export “${title}” as JSON`, () => exportOne(conversation)),
      small("trash", `Delete “${title}”`, () => this.remove(conversation)),
    );
  }

  remove(conversation) {
    this.handlers.forget(conversation.id);
    deleteConversation(conversation.id);
    this.draw();
    byId("new-chat").focus();
    const back = () => {
      saveConversation(conversation);
      this.handlers.open(conversation);
    };
    toast("Conversation deleted.", { label: "Undo", run: back });
  }
}

function small(name, label, run) {
  return h(
    "button",
    { type: "button", class: "icon-button small", "aria-label": label, title: label, onclick: run },
    icon(name),
  );
}

function exportOne(conversation) {
  const name =
    (conversation.title || "conversation")
      .replace(/[^\p{L}\p{N}]+/gu, "-")
      .replace(/^-|-$/g, "")
      .slice(0, 40) || "conversation";
  download(`${name.toLowerCase()}.json`, JSON.stringify(conversation, null, 2));
}

function exportAll() {
  const day = new Date().toISOString().slice(0, 10);
  download(`drivetrain-conversations-${day}.json`, JSON.stringify({ conversations: listConversations() }, null, 2));
}
