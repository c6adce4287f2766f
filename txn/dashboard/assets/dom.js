// Elements. Text only ever becomes text: nothing here, or anywhere on the page, parses markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

// Replace what a node holds, but only if what it shows has changed: calm for eyes and screen readers.
export function show(node, key, make) {
  const now = JSON.stringify(key);
  if (node.shownKey === now) return false;
  node.shownKey = now;
  const at = document.activeElement;
  const focus = at && node.contains(at) ? at.dataset.key : null;
  node.replaceChildren(...[make()].flat(Infinity).filter(Boolean));
  if (focus) [...node.querySelectorAll("[data-key]")].find((e) => e.dataset.key === focus)?.focus({ preventScroll: true });
  return true;
}

export function button(words, act, props) {
  return h("button", { type: "button", class: "button", onclick: act, ...props }, words);
}

export function copyable(text, label) {
  const say = h("button", { type: "button", class: "copy", "aria-label": `Copy ${label || text}` }, "copy");
  const code = h("code", { tabindex: "0" }, text);
  say.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      say.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code);
      say.textContent = "selected";
    }
    setTimeout(() => { say.textContent = "copy"; }, 1500);
  });
  return h("div", { class: "command" }, code, say);
}

// A command with a blank to be filled in is not copied.
export const command = (text, blanks) => [h("div", { class: "command" }, h("code", { tabindex: "0" }, text)), h("p", { class: "hint" }, blanks)];

// A word of a command, as a shell takes it.
export const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`);

export const empty = (title, ...words) => h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), ...words.map((w) => (w instanceof Node ? w : h("p", {}, w))));

// What is shown while an answer is on its way: one sentence, and where the answer will be.
export const skeleton = (words, lines = 3) => h("div", { class: "loading", role: "status" }, h("p", {}, words), Array.from({ length: lines }, () => h("i", { class: "bone" })));

export const panel = (title, ...children) => {
  const id = `p-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return h("section", { class: "panel", "aria-labelledby": id }, h("h2", { id }, title), ...children);
};

export const badge = (words, kind, title) => h("span", { class: `badge ${kind || ""}`, title }, words);

export const scroller = (label, ...children) => h("div", { class: "scroller", role: "region", "aria-label": label, tabindex: "0" }, ...children);
