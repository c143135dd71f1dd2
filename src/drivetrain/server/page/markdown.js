// Renders a model's text as Markdown, with DOM nodes only. A growing text is rendered again from its first changed
// block on, so a long answer stays cheap, and a selection in it survives.

import { colour } from "./colours.js";
import { copyButton, h } from "./elements.js";
import { formula } from "./formulas.js";
import { inline } from "./inline.js";

const MAX_DEPTH = 10;
const MAX_FORMULA_LINES = 60;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ ]+(.*)$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(.*)|)$/;
const FORMULA = /^ {0,3}(\$\$|\\\[)(.*)$/;
const TASK = /^\[([ xX])\] +(?=\S)/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

const rendered = new WeakMap();

/** Show `text` in `container`. May be called again with more text. */
export function renderMarkdown(container, text) {
  const blocks = parse(text.replace(/\r\n?/g, "\n").replaceAll("\t", "    ").split("\n"));
  const before = rendered.get(container) ?? [];
  const keys = blocks.map((block) => JSON.stringify(block));
  let same = 0;
  while (same < before.length && same < keys.length && before[same] === keys[same]) same++;
  while (container.childNodes.length > same) container.lastChild.remove();
  container.append(...blocks.slice(same).map((block) => node(block, 0)));
  rendered.set(container, keys);
}

/** Blocks as plain data: a type and its lines. */
function parse(lines) {
  const blocks = [];
  let i = 0;
  while (i < lines.length) {
    if (!lines[i].trim()) {
      i++;
      continue;
    }
    const [block, next] = take(lines, i);
    blocks.push(block);
    i = next;
  }
  return blocks;
}

function take(lines, i) {
  const line = lines[i];
  const fence = FENCE.exec(line);
  if (fence) return takeCode(lines, i, fence);
  const begun = FORMULA.exec(line);
  const block = begun && takeFormula(lines, i, begun);
  if (block) return block;
  const heading = HEADING.exec(line);
  if (heading) return [{ type: "heading", level: heading[1].length, text: withoutHashes(heading[2]) }, i + 1];
  if (RULE.test(line)) return [{ type: "rule" }, i + 1];
  if (QUOTE.test(line)) return takeQuote(lines, i);
  if (ITEM.test(line)) return takeList(lines, i);
  if (isTable(lines, i)) return takeTable(lines, i);
  return takeParagraph(lines, i);
}

/** Turns "Title ##" into "Title"; a regular expression would be slow on hostile input. */
function withoutHashes(text) {
  const trimmed = text.trim();
  let end = trimmed.length;
  while (trimmed[end - 1] === "#") end--;
  return end === 0 || trimmed[end - 1] === " " ? trimmed.slice(0, end).trim() : trimmed;
}

function takeCode(lines, i, [, fence, info]) {
  const close = new RegExp(`^ {0,3}${fence[0]}{${fence.length},}\\s*$`);
  let end = i + 1;
  while (end < lines.length && !close.test(lines[end])) end++;
  const language = info.trim().split(/\s/)[0];
  return [{ type: "code", language, text: lines.slice(i + 1, end).join("\n") }, end + 1];
}

/** A formula on lines of its own; null if it has no end, or something else behind it. */
function takeFormula(lines, i, [, mark, rest]) {
  const close = mark === "$$" ? "$$" : "\\]";
  const tex = [];
  for (let end = i; end < Math.min(lines.length, i + MAX_FORMULA_LINES); end++) {
    const line = end === i ? rest : lines[end];
    const at = line.indexOf(close);
    if (at !== -1) {
      if (line.slice(at + 2).trim()) return null;
      return [{ type: "formula", mark, close, text: [...tex, line.slice(0, at)].join("\n").trim() }, end + 1];
    }
    if (end > i && !line.trim()) return null;
    tex.push(line);
  }
  return null;
}

function takeQuote(lines, i) {
  let end = i;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  return [{ type: "quote", lines: lines.slice(i, end).map((line) => line.replace(QUOTE, "")) }, end];
}

function takeList(lines, i) {
  const first = ITEM.exec(lines[i]);
  const ordered = /\d/.test(first[2]);
  const list = { type: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items: [] };
  let end = i;
  let indent = 0;
  while (end < lines.length) {
    const line = lines[end];
    const item = ITEM.exec(line);
    const deeper = list.items.length && line.trim() && indentOf(line) >= indent;
    if (item && !deeper && !RULE.test(line)) {
      if (/\d/.test(item[2]) !== ordered) break;
      indent = item[1].length + item[2].length + 1;
      list.items.push([item[4] ?? ""]);
    } else if (deeper) {
      list.items.at(-1).push(line.slice(indent));
    } else if (!line.trim()) {
      if (!continues(lines, end, indent, ordered)) break;
      list.items.at(-1).push("");
    } else if (!lines[end - 1].trim() || startsBlock(line)) {
      break;
    } else {
      list.items.at(-1).push(line.trim());
    }
    end++;
  }
  return [list, end];
}

/** Whether a blank line is inside the list: an indented line or another item follows. */
function continues(lines, at, indent, ordered) {
  let next = at;
  while (next < lines.length && !lines[next].trim()) next++;
  if (next >= lines.length) return false;
  const item = ITEM.exec(lines[next]);
  return indentOf(lines[next]) >= indent || Boolean(item && /\d/.test(item[2]) === ordered && !RULE.test(lines[next]));
}

function isTable(lines, i) {
  return (
    lines[i].includes("|") &&
    i + 1 < lines.length &&
    lines[i + 1].includes("-") &&
    DIVIDER.test(lines[i + 1]) &&
    cells(lines[i]).length === cells(lines[i + 1]).length
  );
}

function takeTable(lines, i) {
  const align = cells(lines[i + 1]).map((c) => (c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : "left"));
  let end = i + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end++;
  return [{ type: "table", align, head: cells(lines[i]), rows: lines.slice(i + 2, end).map(cells) }, end];
}

function cells(line) {
  const row = line
    .trim()
    .replace(/^\|/, "")
    .replace(/(?<!\\)\|$/, "");
  return row.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function takeParagraph(lines, i) {
  let end = i + 1;
  while (end < lines.length && lines[end].trim() && !startsBlock(lines[end])) end++;
  return [
    {
      type: "paragraph",
      text: lines
        .slice(i, end)
        .map((line) => line.trim())
        .join("\n"),
    },
    end,
  ];
}

function startsBlock(line) {
  const item = ITEM.exec(line);
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || FORMULA.test(line) || Boolean(item?.[4]);
}

const indentOf = (line) => line.length - line.trimStart().length;

function node(block, depth) {
  // A block written from right to left is set so; what is inside it follows it.
  const dir = depth === 0 ? "auto" : null;
  switch (block.type) {
    case "heading":
      // The page itself uses h1 and h2, so the model's headings begin below them.
      return h(`h${Math.min(block.level + 2, 6)}`, { class: `md-h${Math.min(block.level, 4)}`, dir }, inline(block.text));
    case "rule":
      return h("hr");
    case "code":
      return codeBlock(block);
    case "formula":
      return formula(`${block.mark}${block.text}${block.close}`, block.text, true);
    case "quote":
      return h("blockquote", { dir }, inside(block.lines, depth));
    case "list":
      return listNode(block, depth, dir);
    case "table":
      return tableNode(block, dir);
    default:
      return h("p", { dir }, inline(block.text));
  }
}

function inside(lines, depth) {
  if (depth >= MAX_DEPTH) return [h("p", {}, lines.join("\n"))];
  return parse(lines).map((block) => node(block, depth + 1));
}

function codeBlock({ language, text }) {
  const head = h(
    "figcaption",
    {},
    h("span", {}, language || "code"),
    copyButton(() => text, "Copy", "tool small"),
  );
  const code = h("code", {}, text);
  const label = `${language || "Code"} block`;
  const body = h("pre", { tabindex: "0", role: "region", "aria-label": label }, code);
  colour(code, language);
  return h("figure", { class: "code" }, head, body);
}

function listNode({ ordered, start, items }, depth, dir) {
  const attributes = { start: ordered && start !== 1 ? start : null, dir };
  return h(
    ordered ? "ol" : "ul",
    attributes,
    items.map((lines) => itemNode(lines, depth)),
  );
}

function itemNode(lines, depth) {
  const task = TASK.exec(lines[0]);
  const box = task && h("span", { class: "box", role: "img", "aria-label": task[1] === " " ? "To do:" : "Done:" });
  const rest = task ? [lines[0].slice(task[0].length), ...lines.slice(1)] : lines;
  return h("li", { class: task && (task[1] === " " ? "task" : "task done") }, box, itemParts(rest, depth));
}

function itemParts(lines, depth) {
  const blocks = depth >= MAX_DEPTH ? [] : parse(lines);
  if (blocks[0]?.type !== "paragraph") return inside(lines, depth);
  const tight = !lines.includes("");
  const first = tight ? inline(blocks[0].text) : [h("p", {}, inline(blocks[0].text))];
  return [...first, ...blocks.slice(1).map((block) => node(block, depth + 1))];
}

function tableNode({ align, head, rows }, dir) {
  const cell = (tag) => (text, i) => h(tag, { class: `align-${align[i] ?? "left"}` }, inline(text));
  const body = rows.map((row) => h("tr", {}, row.slice(0, head.length).map(cell("td"))));
  const table = h("table", { dir }, h("thead", {}, h("tr", {}, head.map(cell("th")))), h("tbody", {}, body));
  return h("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": "Table" }, table);
}
