// A conversation as a file: JSON, which can be imported again, or Markdown, which can be read.

import { byId, download } from "./elements.js";
import { fenced, quotedFile } from "./files.js";
import { path } from "./tree.js";

/** Asks which kind of file it shall be, and saves it. */
export function chooseExport(conversation) {
  const dialog = byId("export-dialog");
  byId("export-what").textContent = conversation.title || "New chat";
  byId("export-markdown").onclick = () => download(`${fileName(conversation)}.md`, asMarkdown(conversation), "text/markdown");
  byId("export-json").onclick = () => download(`${fileName(conversation)}.json`, JSON.stringify(conversation, null, 2));
  dialog.showModal();
}

/** The branch on screen, each message under the name of who wrote it. Images are left out, which is said. */
export function asMarkdown(conversation) {
  const system = conversation.system.trim() ? [`## System prompt\n\n${conversation.system.trim()}`] : [];
  const title = `# ${(conversation.title || "New chat").replace(/\s+/g, " ")}`;
  return `${[title, ...system, ...path(conversation).map(written)].join("\n\n")}\n`;
}

function written({ role, model, content, reasoning, images = [], files = [], calls = [], form, error, stopped, finish }) {
  const parts = [
    `## ${role === "user" ? "You" : model || "Answer"}`,
    images.length ? `*(${images.length} image${images.length === 1 ? "" : "s"}, not in this file)*` : "",
    ...files.map(quotedFile),
    reasoning ? reasoning.trim().replace(/^/gm, "> ") : "",
    form === "json" && content ? fenced(content, "json") : closed(content.trim()),
    ...calls.map(({ name, arguments: text }) => `Call of \`${name}\`:\n\n${fenced(text, "json")}`),
    ending({ error, stopped, finish }),
  ];
  return parts.filter(Boolean).join("\n\n");
}

/** With the end of a block of code that an answer was cut off in: what follows would stand in it too. */
function closed(markdown) {
  let open = "";
  for (const [, fence, rest] of markdown.matchAll(/^ {0,3}(`{3,}|~{3,})(.*)$/gm)) {
    if (!open) open = fence;
    else if (fence[0] === open[0] && fence.length >= open.length && !rest.trim()) open = "";
  }
  return open ? `${markdown}\n${open}` : markdown;
}

function ending({ error, stopped, finish }) {
  if (error) return `*(${error.message})*`;
  if (stopped) return "*(stopped)*";
  return finish === "length" ? "*(cut off)*" : "";
}

function fileName({ title }) {
  const name = title
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-|-$/g, "")
    .slice(0, 40);
  return (name || "conversation").toLowerCase();
}
