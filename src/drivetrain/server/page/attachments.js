// What goes with the message that is being written: text files, and images if the model accepts them.

import { byId, h, icon, toast } from "./elements.js";
import { readFile } from "./files.js";
import { imageFiles, readImage } from "./images.js";

export class Attachments {
  /** `changed()` is called after every change, `removed()` also when the reader has taken one back. */
  constructor({ changed, removed }) {
    this.handlers = { changed, removed };
    this.images = [];
    this.files = [];
    this.vision = false;
    this.maxImages = 0;
    this.listen(byId("file"), byId("attach"));
  }

  get some() {
    return this.images.length > 0 || this.files.length > 0;
  }

  /** What the loaded model accepts. */
  allow({ vision, maxImages }) {
    Object.assign(this, { vision, maxImages });
    const label = vision ? "Add an image or a text file" : "Add a text file";
    byId("attach").setAttribute("aria-label", label);
    byId("attach").title = label;
    byId("drop-veil").textContent = vision ? "Drop an image or a text file to add it" : "Drop a text file to add it";
    if (!vision && this.images.length) this.set({ images: [], files: this.files });
  }

  set({ images, files }) {
    Object.assign(this, { images, files });
    const row = byId("attachments");
    row.hidden = !this.some;
    row.replaceChildren(
      ...images.map((src, i) => this.thumbnail(src, i)),
      ...files.map((file, i) => this.chip(file, i)),
    );
    this.handlers.changed();
  }

  /** Takes over files that were pasted or dropped. */
  take(event, list) {
    if (!list?.length) return;
    event.preventDefault();
    this.add([...list]);
  }

  async add(list) {
    for (const file of list) {
      try {
        if (!imageFiles([file]).length) this.set({ ...this, files: [...this.files, await readFile(file)] });
        else if (!this.vision) toast("This model does not accept images.");
        else if (this.images.length >= this.maxImages) return this.tooMany();
        else this.set({ ...this, images: [...this.images, await readImage(file)] });
      } catch (error) {
        toast(error.message);
      }
    }
  }

  tooMany() {
    toast(`This model accepts at most ${this.maxImages} images.`);
  }

  thumbnail(src, i) {
    const image = h("img", { src, alt: `Image ${i + 1} to send` });
    const remove = () => this.set({ ...this, images: this.images.filter((_, at) => at !== i) });
    return h("div", { class: "thumbnail" }, image, this.remover(`Remove image ${i + 1}`, remove));
  }

  chip({ name }, i) {
    const remove = () => this.set({ ...this, files: this.files.filter((_, at) => at !== i) });
    return h("div", { class: "chip" }, icon("file"), h("span", {}, name), this.remover(`Remove ${name}`, remove));
  }

  remover(label, remove) {
    const run = () => {
      remove();
      this.handlers.removed();
    };
    return h("button", { type: "button", class: "icon-button", "aria-label": label, onclick: run }, icon("close"));
  }

  listen(input, button) {
    button.addEventListener("click", () => {
      input.accept = this.vision ? "" : "text/*,application/json,.md,.csv,.log,.toml,.yaml,.pdf"; // PDF: to be told.
      input.click();
    });
    input.addEventListener("change", () => {
      this.add([...input.files]);
      input.value = "";
    });
    this.listenForDrops(byId("main"), byId("drop-veil"));
  }

  listenForDrops(zone, veil) {
    const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
    // A file dropped outside the zone must not replace the page.
    addEventListener("dragover", (event) => holdsFiles(event) && event.preventDefault());
    addEventListener("drop", (event) => holdsFiles(event) && event.preventDefault());
    zone.addEventListener("dragenter", (event) => (veil.hidden = !holdsFiles(event)));
    veil.addEventListener("dragleave", () => (veil.hidden = true));
    zone.addEventListener("drop", (event) => {
      veil.hidden = true;
      this.take(event, event.dataTransfer?.files);
    });
  }
}
