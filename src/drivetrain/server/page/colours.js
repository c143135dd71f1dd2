// Syntax colours of code. The library is loaded when the first block in a language that it knows is shown; its HTML is
// not used, only the tree that it makes.

import { h } from "./elements.js";

export const LANGUAGES = [
  ...["bash", "c", "cpp", "csharp", "css", "diff", "go", "ini", "java", "javascript", "json", "kotlin", "markdown"],
  ...["php", "python", "ruby", "rust", "sql", "swift", "typescript", "xml", "yaml"],
];
export const ALIASES = {
  ...{ sh: "bash", shell: "bash", zsh: "bash", console: "bash", h: "c", "c++": "cpp", cc: "cpp", hpp: "cpp", cs: "csharp" },
  ...{ "c#": "csharp", scss: "css", patch: "diff", golang: "go", toml: "ini", js: "javascript", jsx: "javascript" },
  ...{ mjs: "javascript", jsonc: "json", kt: "kotlin", md: "markdown", py: "python", python3: "python", rb: "ruby" },
  ...{ rs: "rust", ts: "typescript", tsx: "typescript", html: "xml", svg: "xml", yml: "yaml" },
};
const AT_ONCE_CHARS = 6_000;
const MOST_CHARS = 50_000;
const LATER_MS = 250;

const ready = new Map();
let library = null;

/** Colours the text of an element, at once if that is quick, or else when the text has stopped growing. */
export function colour(code, written) {
  const language = known(written);
  const text = code.textContent;
  if (!language || !text || text.length > MOST_CHARS) return;
  if (ready.get(language) === true && text.length <= AT_ONCE_CHARS) return paint(code, text, language);
  setTimeout(async () => {
    if (code.isConnected && (await load(language)) && code.textContent === text) paint(code, text, language);
  }, ready.get(language) ? LATER_MS : 0);
}

function known(written) {
  const name = written.toLowerCase();
  return LANGUAGES.includes(name) ? name : Object.hasOwn(ALIASES, name) ? ALIASES[name] : null;
}

/** True once the language is there; false if it cannot be loaded: the code then stays as it is. */
async function load(language) {
  if (!ready.has(language)) ready.set(language, fetchGrammar(language));
  return ready.get(language);
}

async function fetchGrammar(language) {
  try {
    library ??= (await import("./vendor/highlight.js")).default;
    library.registerLanguage(language, (await import(`./vendor/highlight-${language}.js`)).default);
  } catch {
    ready.delete(language);
    return false;
  }
  ready.set(language, true);
  return true;
}

function paint(code, text, language) {
  const { _emitter: tree } = library.highlight(text, { language, ignoreIllegals: true });
  code.replaceChildren(...tree.root.children.map(node));
}

function node(part) {
  if (typeof part === "string") return part;
  const children = part.children.map(node);
  return h("span", { class: part.scope ? `c-${part.scope.split(/[.:]/)[0].replaceAll("_", "-")}` : null }, children);
}
