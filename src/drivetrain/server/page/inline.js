// Markdown within a line: code, emphasis, links. Everything else, HTML above all, stays plain text.
// Linear in the text: markers without an end are remembered, so that no input makes it search again and again.

import { h } from "./elements.js";
import { formula } from "./formulas.js";

const MAX_DEPTH = 8;
const MAX_LABEL = 1000;
const MAX_FORMULA = 1000;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;
const MARKERS = [
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
];

/** Nodes for a piece of text. */
export function inline(text, depth = 0) {
  const nodes = [];
  const unclosed = new Set();
  let plain = "";
  const flush = () => {
    if (plain) nodes.push(plain);
    plain = "";
  };
  for (let i = 0; i < text.length;) {
    const found = depth < MAX_DEPTH ? match(text, i, depth, unclosed) : null;
    if (found) {
      if (typeof found.node === "string") plain += found.node;
      else (flush(), nodes.push(found.node));
      i = found.end;
    } else {
      plain += text[i++];
    }
  }
  flush();
  return nodes;
}

function match(text, i, depth, unclosed) {
  switch (text[i]) {
    case "$":
      return text[i + 1] === "$" ? marked(text, i, "$$", "$$") : dollars(text, i, unclosed);
    case "\\":
      if (text[i + 1] === "(") return marked(text, i, "\\(", "\\)") ?? { node: "(", end: i + 2 };
      if (text[i + 1] === "[") return marked(text, i, "\\[", "\\]") ?? { node: "[", end: i + 2 };
      return i + 1 < text.length && PUNCTUATION.test(text[i + 1]) ? { node: text[i + 1], end: i + 2 } : null;
    case "\n":
      return { node: h("br"), end: i + 1 };
    case "`":
      return code(text, i, unclosed);
    case "*":
    case "_":
    case "~":
      return emphasis(text, i, depth, unclosed);
    case "[":
      return link(text, i, depth);
    case "!":
      return text[i + 1] === "[" ? link(text, i + 1, depth) : null; // An image is only ever a link.
    case "<":
    case "h":
      return bareLink(text, i);
    default:
      return null;
  }
}

function code(text, i, unclosed) {
  let run = 1;
  while (text[i + run] === "`") run++;
  const fence = "`".repeat(run);
  if (unclosed.has(fence)) return { node: fence, end: i + run };
  for (let j = text.indexOf(fence, i + run); j !== -1;) {
    let length = run;
    while (text[j + length] === "`") length++;
    if (length === run) {
      const inside = text.slice(i + run, j).replaceAll("\n", " ");
      const padded = inside.startsWith(" ") && inside.endsWith(" ") && inside.trim();
      return { node: h("code", {}, padded ? inside.slice(1, -1) : inside), end: j + run };
    }
    j = text.indexOf(fence, j + length);
  }
  unclosed.add(fence);
  return { node: fence, end: i + run };
}

/** A formula between two marks. */
function marked(text, i, open, close) {
  const within = text.slice(i + 2, i + 2 + MAX_FORMULA);
  const length = within.indexOf(close);
  const tex = within.slice(0, length);
  if (length === -1 || !tex.trim()) return null;
  return { node: formula(open + tex + close, tex, open === "$$" || open === "\\["), end: i + length + 4 };
}

/** A formula between single dollars, which more often are money: no space inside them, and no word behind them. */
function dollars(text, i, unclosed) {
  if (unclosed.has("$") || /[\s$]/.test(text[i + 1] ?? " ") || (i > 0 && WORD.test(text[i - 1]))) return null;
  const within = text.slice(i + 1, i + 1 + MAX_FORMULA);
  const length = within.search(/(?<![\s\\])\$(?![\p{L}\p{N}])|\n/u);
  if (length <= 0 || within[length] === "\n") {
    if (!text.includes("$", i + 1)) unclosed.add("$");
    return null;
  }
  const tex = within.slice(0, length);
  return { node: formula(`$${tex}$`, tex, false), end: i + length + 2 };
}

function emphasis(text, i, depth, unclosed) {
  for (const [marker, tag] of MARKERS) {
    const start = i + marker.length;
    if (!text.startsWith(marker, i) || unclosed.has(marker)) continue;
    if (start >= text.length || /\s/.test(text[start])) continue;
    if (marker[0] === "_" && i > 0 && WORD.test(text[i - 1])) continue;
    const end = closing(text, marker, start);
    if (end === -1) {
      unclosed.add(marker);
      continue;
    }
    return { node: h(tag, {}, inline(text.slice(start, end), depth + 1)), end: end + marker.length };
  }
  return null;
}

function closing(text, marker, start) {
  const one = marker[0];
  for (let j = start; j < text.length; j++) {
    if (text[j] === "\\") j++;
    else if (text[j] === one) {
      if (marker.length === 1 && text[j + 1] === one && j > start) {
        j++; // A double inside a single belongs to the inner one.
        continue;
      }
      let at = j;
      if (marker.length === 2) {
        if (text[j + 1] !== one) continue;
        if (text[j + 2] === one) at = j + 1;
      }
      if (at <= start - 1 || /\s/.test(text[at - 1]) || at === start) continue;
      if (one === "_" && at + marker.length < text.length && WORD.test(text[at + marker.length])) continue;
      return at;
    }
  }
  return -1;
}

function link(text, i, depth) {
  const middle = labelEnd(text, i);
  if (middle === -1 || text[middle + 1] !== "(") return null;
  const end = text.slice(middle + 2, middle + 2 + 2 * MAX_LABEL).search(/[\s)]/) + middle + 2;
  const close = end < middle + 2 ? -1 : text[end] === ")" ? end : titleEnd(text, end);
  if (close === -1) return null;
  const url = safeUrl(text.slice(middle + 2, end));
  if (!url) return { node: text.slice(i, close + 1), end: close + 1 };
  const label = inline(text.slice(i + 1, middle), MAX_DEPTH - 1 > depth ? MAX_DEPTH - 1 : MAX_DEPTH);
  return { node: anchor(url, label.length ? label : [url]), end: close + 1 };
}

function labelEnd(text, i) {
  let open = 0;
  for (let j = i; j < text.length && j < i + MAX_LABEL; j++) {
    if (text[j] === "\\") j++;
    else if (text[j] === "[") open++;
    else if (text[j] === "]" && --open === 0) return j;
  }
  return -1;
}

function titleEnd(text, from) {
  const rest = /^\s+(?:"[^"]{0,300}"|'[^']{0,300}')\s*\)/.exec(text.slice(from, from + 400));
  return rest ? from + rest[0].length - 1 : -1;
}

function bareLink(text, i) {
  const angled = text[i] === "<";
  if (!angled && i > 0 && WORD.test(text[i - 1])) return null;
  const found = /^https?:\/\/[^\s<>"`]{1,2000}/i.exec(text.slice(i + (angled ? 1 : 0), i + 2020));
  if (!found) return null;
  if (angled && text[i + 1 + found[0].length] !== ">") return null;
  const written = angled ? found[0] : withoutTail(found[0]);
  const url = safeUrl(written);
  if (!url) return null;
  return { node: anchor(url, [written]), end: i + written.length + (angled ? 2 : 0) };
}

/** The punctuation after a URL is not part of it, nor is the closing bracket of one that was opened before it. */
function withoutTail(written) {
  let end = written.length;
  let open = [...written].filter((c) => c === "(").length - [...written].filter((c) => c === ")").length;
  for (; end > 0; end--) {
    const last = written[end - 1];
    if (last === ")" && open < 0) open++;
    else if (!".,:;!?'*_~]".includes(last)) break;
  }
  return written.slice(0, end);
}

function anchor(url, label) {
  return h("a", { href: url, title: url, target: "_blank", rel: "noopener noreferrer" }, label);
}

/** The URL if it leads to the web, else null: no javascript:, data:, file: or relative links. */
export function safeUrl(written) {
  if (!/^https?:\/\//i.test(written)) return null;
  try {
    const url = new URL(written);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}
