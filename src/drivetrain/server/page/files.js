// Text files that go with a message: read here, shown as folds, and sent as text in front of it.

import { h, icon } from "./elements.js";

const MAX_BYTES = 256 * 1024;

/** Its name and its text. */
export async function readFile(file) {
  const name = file.name || "text";
  if (await isPdf(file)) throw new Error(`${name}: this page cannot read PDF files yet. Copy the text and paste it here.`);
  if (file.size > MAX_BYTES) throw new Error(`${name} is too large: at most ${MAX_BYTES / 1024} kB can be added.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new Error();
    return { name, text };
  } catch {
    throw new Error(`${name} is not a text file.`);
  }
}

const isPdf = async (file) => file.type === "application/pdf" || (await file.slice(0, 5).text()) === "%PDF-";

/** What the model gets of a file. */
export const quotedFile = ({ name, text }) => `File ${JSON.stringify(name)}:\n${fenced(text)}`;

/** A text as a block of code in Markdown. The fence is longer than any in the text. */
export function fenced(text, language = "") {
  const longest = (text.match(/`+/g) ?? []).reduce((most, run) => Math.max(most, run.length), 2);
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}

/** A file in a message: its name, and its text in a fold. */
export function fileView({ name, text }) {
  const head = h("summary", {}, icon("file"), h("span", {}, name), h("span", { class: "size" }, size(text)));
  const body = h("pre", { tabindex: "0", role: "region", "aria-label": `Text of ${name}`, dir: "auto" }, text);
  return h("details", { class: "file" }, head, body);
}

function size(text) {
  const lines = text.replace(/\n$/, "").split("\n").length;
  return `${lines} line${lines === 1 ? "" : "s"}`;
}
