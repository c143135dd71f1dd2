// The list of conversations: open, start, search, delete (with a way back), and keep as a file or take from one.

import { conversationItem } from "./conversation-item.js";
import { byId, download, dress, toast } from "./elements.js";
import { chooseExport } from "./exporting.js";
import { readConversations } from "./importing.js";
import { excerpt, find } from "./searching.js";
import { deleteConversation, listConversations, loadConversation, newConversation, saveConversation } from "./store.js";
import { path, turnTo } from "./tree.js";

export class Sidebar {
  /**
   * `open(conversation)`, `start()`, `forget(id)` (it was deleted), `current()` (the id on screen), `live(id)` (the
   * conversation itself if it is on screen or being answered, or null).
   */
  constructor(handlers) {
    this.handlers = handlers;
    this.renaming = false;
    dress(byId("new-chat"), "plus", "New chat");
    dress(byId("export-all"), "download", "Export");
    dress(byId("import"), "upload", "Import");
    byId("new-chat").addEventListener("click", () => handlers.start());
    byId("export-all").addEventListener("click", () => exportAll());
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", (event) => this.import(event.target));
    byId("search").addEventListener("input", () => this.draw());
    byId("search").addEventListener("keydown", (event) => event.key === "Escape" && this.leaveSearch(event));
  }

  draw() {
    if (this.renaming) return; // The list waits for the new name.
    const all = listConversations();
    const words = byId("search").value;
    const found = find(all, words);
    const list = byId("conversations");
    const focused = document.activeElement?.closest("#conversations button")?.dataset.name;
    list.replaceChildren(...found.map((hit) => this.item(hit, words)));
    if (focused) list.querySelector(`[data-name="${CSS.escape(focused)}"]`)?.focus();
    byId("export-all").hidden = !all.length;
    byId("search").hidden = !all.length && !words;
    byId("search-none").hidden = found.length > 0 || !words.trim();
  }

  item({ conversation, message }, words) {
    return conversationItem(conversation, {
      current: conversation.id === this.handlers.current(),
      excerpt: message ? excerpt(message.content, words) : "",
      open: () => this.open(conversation, message),
      rename: (title) => this.rename(conversation, title),
      renaming: (renaming) => (this.renaming = renaming),
      save: () => chooseExport(this.handlers.live(conversation.id) ?? conversation),
      remove: () => this.remove(conversation),
    });
  }

  /** At the message that was found, also if it is in another branch. */
  open(conversation, message) {
    const live = this.handlers.live(conversation.id) ?? conversation;
    const found = message && live.messages.find(({ id }) => id === message.id);
    if (found && !path(live).includes(found)) turnTo(live, found);
    this.handlers.open(live);
  }

  rename(conversation, title) {
    const live = this.handlers.live(conversation.id) ?? conversation;
    live.title = title;
    saveConversation(live);
    this.draw();
  }

  leaveSearch(event) {
    if (!byId("search").value) return;
    event.stopPropagation();
    byId("search").value = "";
    this.draw();
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

  async import(input) {
    try {
      const read = readConversations(await input.files[0].text());
      const added = read.filter(isNew);
      const kept = added.filter((conversation) => saveConversation(conversation));
      toast(told(read.length, added.length, kept.length));
    } catch (error) {
      toast(error.message);
    }
    input.value = "";
    this.draw();
  }
}

/** One that is already here, as it is, is not added again; one that has changed gets a place of its own. */
function isNew(conversation) {
  const here = conversation.id && loadConversation(conversation.id);
  if (here && isSame(here, conversation)) return false;
  if (here || !conversation.id) conversation.id = newConversation().id;
  return true;
}

const isSame = (here, { messages }) =>
  JSON.stringify(readConversations(JSON.stringify(here))[0]?.messages) === JSON.stringify(messages);

function told(read, added, kept) {
  if (kept < added) return `Only ${count(kept)} imported: this browser's storage is full.`;
  return added < read ? `${count(added)} imported; ${read - added} already here.` : `${count(added)} imported.`;
}

const count = (many) => `${many} conversation${many === 1 ? "" : "s"}`;

function exportAll() {
  const day = new Date().toISOString().slice(0, 10);
  download(`drivetrain-conversations-${day}.json`, JSON.stringify({ conversations: listConversations() }, null, 2));
}
