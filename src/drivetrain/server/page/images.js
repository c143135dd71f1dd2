// Turns image files into data URIs that are small enough to send.

const MAX_SIDE = 1536;
const MAX_BYTES = 1_500_000;

export const imageFiles = (list) => [...(list ?? [])].filter((file) => file.type.startsWith("image/"));

/** A data URI. Photos are redrawn, which turns them upright and removes their location data. */
export async function readImage(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name || "The image"} cannot be read as an image.`);
  }
  try {
    return draw(bitmap, file.type === "image/png");
  } finally {
    bitmap.close();
  }
}

function draw(bitmap, keepPng) {
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  if (keepPng) {
    context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const png = canvas.toDataURL("image/png");
    if (png.length <= MAX_BYTES) return png;
  }
  context.fillStyle = "#fff"; // JPEG has no transparency.
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.88);
}
