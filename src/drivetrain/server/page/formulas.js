// Formulas in TeX, shown as MathML. The library is loaded when the first one is shown; until then, and if a formula is
// wrong, its source stands there.

import { h } from "./elements.js";

const MOST_CHARS = 4_000;
const kept = new Map();
const MOST_KEPT = 500;

let library = null;

/** The element of a formula. `source` is how it was written, `tex` what is between the marks. */
export function formula(source, tex, display) {
  const element = h(display ? "div" : "span", { class: display ? "formula block" : "formula" }, source);
  if (tex.length > MOST_CHARS) return element;
  if (library?.render) draw(element, source, tex, display);
  else load().then((loaded) => loaded && draw(element, source, tex, display));
  return element;
}

async function load() {
  library ??= import("./vendor/temml.js").then((module) => (library = module.default));
  try {
    return await library;
  } catch {
    library = null;
    return null;
  }
}

/** A growing answer shows the same formula again and again, so the last ones are kept. */
function draw(element, source, tex, display) {
  const key = `${display} ${tex}`;
  if (!kept.has(key)) {
    if (kept.size >= MOST_KEPT) kept.clear();
    kept.set(key, made(tex, display));
  }
  const math = kept.get(key);
  if (math) element.replaceChildren(math.cloneNode(true));
  else element.textContent = source;
}

function made(tex, display) {
  const box = document.createDocumentFragment();
  try {
    const holder = h("span");
    library.render(tex, holder, { displayMode: display, throwOnError: true, trust: false, maxExpand: 200, maxSize: [20, 20] });
    box.append(...holder.childNodes);
    return box;
  } catch {
    return null;
  }
}
