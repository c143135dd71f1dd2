// A conversation as a tree: each message knows its parent, and one path from a beginning to an end is on screen.
// An edit, another answer, a continuation and another token are all the same thing: a new child.

/**
 * Puts in order what older versions of this page have kept, and what was imported: every message has a number and an
 * existing parent before it. A list without parents becomes a single branch, and nothing is lost.
 */
export function grown(conversation) {
  const known = new Set();
  let before = null;
  for (const message of conversation.messages) {
    const fresh = !Number.isSafeInteger(message.id) || known.has(message.id);
    if (fresh) message.id = 1 + [...known].reduce((most, id) => Math.max(most, id), 0);
    if (fresh || (message.parent !== null && !known.has(message.parent))) message.parent = before;
    known.add(message.id);
    before = message.id;
  }
  if (!known.has(conversation.current)) conversation.current = before;
  return conversation;
}

/** The messages on screen, from the first to the last. */
export function path(conversation) {
  const byId = new Map(conversation.messages.map((message) => [message.id, message]));
  const found = [];
  for (let at = byId.get(conversation.current); at; at = byId.get(at.parent)) found.push(at);
  return found.reverse();
}

/** Puts a new message behind `parent` (null begins the conversation), on screen. */
export function add(conversation, parent, message) {
  const id = 1 + conversation.messages.reduce((most, other) => Math.max(most, other.id), 0);
  conversation.messages.push(Object.assign(message, { id, parent }));
  show(conversation, id);
  return message;
}

/** Takes out a message, such as an answer that never began, unless something is behind it. */
export function remove(conversation, message) {
  if (conversation.messages.some(({ parent }) => parent === message.id)) return;
  conversation.messages = conversation.messages.filter((other) => other !== message);
  show(conversation, message.parent);
}

export const parentOf = ({ messages }, { parent }) => messages.find(({ id }) => id === parent) ?? null;

/** A message and its alternatives, in the order in which they were made. */
export const versions = ({ messages }, { parent, role }) =>
  messages.filter((other) => other.parent === parent && other.role === role);

/** The answers of several models to one question that came together; the message alone if it was alone. */
export const pairOf = (conversation, message) =>
  message.pair ? versions(conversation, message).filter(({ pair }) => pair === message.pair) : [message];

/** Shows the branch that goes through this message, to the end where it was left. */
export function turnTo(conversation, message) {
  let end = message;
  for (;;) {
    const children = conversation.messages.filter(({ parent }) => parent === end.id);
    if (!children.length) return show(conversation, end.id);
    end = children.find(({ id }) => id === end.next) ?? children.at(-1);
  }
}

/** The conversation goes on from here. */
export function show(conversation, id) {
  conversation.current = id;
  let child = null;
  for (const message of path(conversation).reverse()) {
    if (child !== null) message.next = child;
    child = message.id;
  }
}
