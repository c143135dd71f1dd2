// What is being written in each conversation, kept until it is sent: the text in the browser, attachments in this tab.

import { loadDraft, saveDraft } from "./store.js";

export class Drafts {
  constructor() {
    this.attached = new Map();
  }

  of(conversation) {
    const key = keyOf(conversation);
    return { content: loadDraft(key), ...(this.attached.get(key) ?? { images: [], files: [] }) };
  }

  keep(conversation, { content, images, files }) {
    const key = keyOf(conversation);
    saveDraft(key, content);
    this.attached.set(key, { images, files });
  }

  /** Forgets the draft of a conversation that has not begun: its first message is on its way. */
  begun() {
    saveDraft(NEW, "");
    this.attached.delete(NEW);
  }
}

const NEW = "new";
const keyOf = ({ id, messages }) => (messages.length ? id : NEW);
