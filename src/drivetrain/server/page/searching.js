// Finds conversations by words in their titles and messages, whichever branch they are in.

const AROUND = 28;

/** The conversations that have all these words, each with the message where they are, if it is not the title. */
export function find(conversations, text) {
  const words = folded(text).split(/\s+/).filter(Boolean);
  const has = (found) => words.every((word) => folded(found).includes(word));
  if (!words.length) return conversations.map((conversation) => ({ conversation, message: null }));
  return conversations.flatMap((conversation) => {
    if (has(conversation.title)) return [{ conversation, message: null }];
    const message = conversation.messages.find(({ content }) => has(content));
    return message ? [{ conversation, message }] : [];
  });
}

/** The surroundings of the first of these words in a text. */
export function excerpt(content, text) {
  const line = content.replace(/\s+/g, " ");
  const at = Math.max(0, folded(line).indexOf(folded(text).trim().split(/\s+/)[0]));
  const from = Math.max(0, at - AROUND);
  const to = at + 2 * AROUND;
  return `${from ? "…" : ""}${line.slice(from, to).trim()}${to < line.length ? "…" : ""}`;
}

const folded = (text) => String(text).toLowerCase();
