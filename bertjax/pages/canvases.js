// Drawing of matrices: pixels of one value each, scaled up, with labels where there is room.
const FONT = "11px ui-monospace, Menlo, Consolas, monospace";
// Labels beside and above a matrix need cells of this many pixels.
const LABELLED = 12, MARGIN = 88, LARGEST = 26;

function cut(token, length = 12) { return token.length > length ? token.slice(0, length - 1) + "…" : token; }

// Sets the size of a canvas in CSS pixels, in the resolution of the screen; returns its context.
function sized(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return context;
}

// The colours of values 0 to 255: from the panel over the colour of lines to a deep one, so that
// both small and large values are told apart.
function palette() {
  const panel = colour("--panel").match(/[0-9a-f]{2}/gi).map((hex) => parseInt(hex, 16));
  const [line, deep] = ["--line", "--deep"].map((name) => colour(name).split(",").map(Number));
  const between = (from, to, part) => from.map((c, i) => Math.round(c + (to[i] - c) * part));
  return Array.from({ length: 256 }, (_, n) => n < 160 ? between(panel, line, n / 160) : between(line, deep, (n - 160) / 95));
}

// An image of `columns` x `rows` pixels; `shade(i)` is 0 to 255 for the pixel with index i.
function image(columns, rows, shade, colours) {
  const made = document.createElement("canvas");
  made.width = columns;
  made.height = rows;
  const context = made.getContext("2d"), pixels = context.createImageData(columns, rows);
  for (let i = 0; i < columns * rows; i++) {
    const [r, g, b] = colours[shade(i)];
    pixels.data[4 * i] = r; pixels.data[4 * i + 1] = g; pixels.data[4 * i + 2] = b; pixels.data[4 * i + 3] = 255;
  }
  context.putImageData(pixels, 0, 0);
  return made;
}

// A picture with fewer columns, whose rows do not blend into one another.
function narrowed(picture, columns) {
  const made = document.createElement("canvas");
  made.width = columns;
  made.height = picture.height;
  made.getContext("2d").drawImage(picture, 0, 0, columns, picture.height);
  return made;
}

// Where a matrix of `columns` x `rows` is drawn in a panel of `room` pixels.
function place(room, columns, rows, height) {
  const labelled = columns <= 48;
  const margin = labelled || height ? MARGIN : 0;
  const fit = (room - margin) / columns;
  const width = labelled ? Math.min(LARGEST, Math.max(LABELLED, Math.floor(fit))) : Math.min(LARGEST, fit);
  const cell = [width, height || width];
  return { columns, rows, cell, labelled, left: margin, top: labelled ? MARGIN : 0,
    width: margin + columns * width, height: (labelled ? MARGIN : 0) + rows * cell[1] };
}

// Draws an image with labels, and marks the picked row and column.
function paint(canvas, at, picture, tokens, rowLabel, picked) {
  const context = sized(canvas, at.width, at.height), [width, height] = at.cell;
  context.imageSmoothingEnabled = width < 1 && height < 1;
  context.font = FONT;
  context.textBaseline = "middle";
  const ink = colour("--ink"), strong = colour("--picked");
  const write = (text, isPicked) => { context.direction = isRtl(text) ? "rtl" : "ltr"; context.fillStyle = isPicked ? strong : ink; context.fillText(text, 0, 0); };
  const line = (text, x, y, turn, align, isPicked) => {
    context.save();
    context.translate(x, y);
    context.rotate(turn);
    context.textAlign = align;
    write(text, isPicked);
    context.restore();
  };
  if (at.left) {
    for (let row = 0; row < at.rows; row++) line(cut(rowLabel(row)), at.left - 6, at.top + (row + 0.5) * height, 0, "right", picked.row === row);
  }
  if (at.labelled) {
    tokens.forEach((token, n) => line(cut(token), at.left + (n + 0.5) * width, at.top - 6, -Math.PI / 2, "left", picked.column === n));
  }
  if (width < 1 && height >= 1) picture = narrowed(picture, Math.max(1, Math.round(at.columns * width)));
  context.drawImage(picture, at.left, at.top, at.columns * width, at.rows * height);
  context.strokeStyle = colour("--rule");
  context.strokeRect(at.left + 0.5, at.top + 0.5, at.columns * width - 1, at.rows * height - 1);
  context.strokeStyle = strong;
  context.lineWidth = 1.5;
  if (picked.row !== undefined) context.strokeRect(at.left, at.top + picked.row * height, at.columns * width, height);
  if (picked.column !== undefined) context.strokeRect(at.left + picked.column * width, at.top, width, at.rows * height);
}

// The row and the column under the pointer; null beside the matrix.
function cellAt(event, canvas, at) {
  const box = canvas.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left - at.left) / at.cell[0]);
  const row = Math.floor((event.clientY - box.top - at.top) / at.cell[1]);
  return row < 0 || column < 0 || row >= at.rows || column >= at.columns ? null : [row, column];
}

// Calls `found(row, column)` when the pointer moves over a cell, or taps or clicks it.
function follow(canvas, where, found) {
  const call = (event) => { const at = cellAt(event, canvas, where()); if (at) found(...at); };
  canvas.addEventListener("pointermove", (event) => { if (event.pointerType !== "touch") call(event); });
  canvas.addEventListener("click", call);
}
