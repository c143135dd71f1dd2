// The message box: text, images if the model accepts them, and the one button that sends or stops.

import { byId, dress, h, icon, toast } from "./elements.js";
import { imageFiles, readImage } from "./images.js";
import { fit } from "./messages.js";

export class Composer {
  /** `send(text, images)` returns whether it took the message; `stop()` stops the answer in progress. */
  constructor({ send, stop, changed }) {
    this.handlers = { send, stop, changed };
    this.images = [];
    this.vision = false;
    this.maxImages = 0;
    this.busy = false;
    this.enabled = false;
    this.area = byId("message");
    this.button = byId("send");
    dress(byId("attach"), "image");
    this.listen();
    this.show();
  }

  get draft() {
    return { content: this.area.value.trim(), images: this.images };
  }

  /** What the loaded model accepts. */
  allow({ enabled, vision, maxImages, placeholder }) {
    Object.assign(this, { enabled, vision, maxImages });
    byId("attach").hidden = !vision;
    this.area.placeholder = placeholder;
    this.area.disabled = !enabled;
    if (!vision) this.setImages([]);
    this.show();
  }

  setBusy(busy) {
    this.busy = busy;
    this.show();
  }

  setText(text) {
    this.area.value = text;
    this.area.focus();
    this.changed();
  }

  listen() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.busy) this.handlers.stop();
      else this.submit();
    });
    this.area.addEventListener("input", () => this.changed());
    this.area.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.busy) this.submit();
    });
    this.area.addEventListener("paste", (event) => this.takeFiles(event, event.clipboardData?.files));
    byId("attach").addEventListener("click", () => byId("image-file").click());
    byId("image-file").addEventListener("change", (event) => {
      this.add(imageFiles(event.target.files));
      event.target.value = "";
    });
    this.listenForDrops(byId("main"), byId("drop-veil"));
  }

  listenForDrops(zone, veil) {
    const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
    // A file dropped outside the zone must not replace the page.
    addEventListener("dragover", (event) => holdsFiles(event) && event.preventDefault());
    addEventListener("drop", (event) => holdsFiles(event) && event.preventDefault());
    zone.addEventListener("dragenter", (event) => (veil.hidden = !(this.vision && holdsFiles(event))));
    veil.addEventListener("dragleave", () => (veil.hidden = true));
    zone.addEventListener("drop", (event) => {
      veil.hidden = true;
      this.takeFiles(event, event.dataTransfer?.files);
    });
  }

  takeFiles(event, files) {
    const images = imageFiles(files);
    if (!images.length) return;
    event.preventDefault();
    if (this.vision) this.add(images);
    else toast("This model does not accept images.");
  }

  async add(files) {
    for (const file of files) {
      if (this.images.length >= this.maxImages) return toast(`This model accepts at most ${this.maxImages} images.`);
      try {
        this.setImages([...this.images, await readImage(file)]);
      } catch (error) {
        toast(error.message);
      }
    }
  }

  setImages(images) {
    this.images = images;
    const row = byId("attachments");
    row.hidden = !images.length;
    row.replaceChildren(...images.map((src, i) => this.thumbnail(src, i)));
    this.changed();
  }

  thumbnail(src, i) {
    const remove = () => {
      this.setImages(this.images.filter((_, at) => at !== i));
      this.area.focus();
    };
    return h(
      "div",
      { class: "thumbnail" },
      h("img", { src, alt: `Image ${i + 1} to send` }),
      h(
        "button",
        { type: "button", class: "icon-button", "aria-label": `Remove image ${i + 1}`, onclick: remove },
        icon("close"),
      ),
    );
  }

  submit() {
    const { content, images } = this.draft;
    if (!this.enabled || !this.handlers.send(content, images)) return;
    this.area.value = "";
    this.setImages([]);
  }

  changed() {
    fit(this.area);
    this.show();
    this.handlers.changed();
  }

  show() {
    const empty = !this.area.value.trim() && !this.images.length;
    dress(this.button, this.busy ? "stop" : "send");
    this.button.setAttribute("aria-label", this.busy ? "Stop" : "Send");
    this.button.title = this.busy ? "Stop (Esc)" : "Send (Enter)";
    this.button.classList.toggle("stop", this.busy);
    this.button.setAttribute("aria-disabled", String(!this.busy && (empty || !this.enabled)));
  }
}
