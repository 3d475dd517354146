// All tokens in one strip: what they are, where turns begin, where prompts left what was held, and what is in view.

class Overview {
  constructor(canvas, stream, turns) {
    Object.assign(this, { canvas, stream, turns, picture: make("canvas") });
    const last = stream[stream.length - 1];
    this.tokens = last ? last.token + last.end - last.start : 0;
  }

  color(name) {
    this.canvas.style.color = `var(--${name})`;
    return getComputedStyle(this.canvas).color;
  }

  left(token) {
    return (token / this.tokens) * this.canvas.width;
  }

  tokenAt(event) {
    const box = this.canvas.getBoundingClientRect();
    return ((event.clientX - box.left) / box.width) * this.tokens;
  }

  draw(list) {
    for (const canvas of [this.canvas, this.picture]) {
      canvas.width = this.canvas.clientWidth * devicePixelRatio;
      canvas.height = this.canvas.clientHeight * devicePixelRatio;
    }
    const paint = this.picture.getContext("2d");
    const names = ["prompt", "trained", "discarded", "unusable"].map((kind) => [kind, this.color(`strip-${kind}`)]);
    const colors = Object.fromEntries([...names, ...["clean", "realign", "fork"].map((kind) => [kind, this.color(kind)])]);
    for (const block of this.stream) {
      if (block.kind === "tokens") this.drawTokens(paint, block, colors);
      if (block.kind === "turn") this.drawTurn(paint, block, colors);
    }
    this.look(list);
  }

  drawTokens(paint, { token, start, end, segment }, colors) {
    const { height } = this.canvas;
    paint.fillStyle = colors[segment.kind];
    paint.fillRect(this.left(token), height * 0.3, Math.max(1, this.left(end - start)), height * 0.4);
  }

  drawTurn(paint, { token, turn }, colors) {
    const { height } = this.canvas;
    const { transition } = this.turns[turn].facts;
    const isDrift = transition === "fork" || transition === "realign";
    paint.fillStyle = colors[transition ?? "clean"];
    if (isDrift) paint.fillRect(this.left(token), 0, 2 * devicePixelRatio, height);
    else paint.fillRect(this.left(token), height * 0.8, devicePixelRatio, height * 0.2);
  }

  // Frames what the list has in view.
  look(list) {
    const { canvas, picture, stream } = this;
    if (!picture.width) return;
    const paint = canvas.getContext("2d");
    paint.clearRect(0, 0, canvas.width, canvas.height);
    paint.drawImage(picture, 0, 0);
    const first = this.left(stream[list.first].token);
    const last = this.left(stream[list.at(list.scroller.scrollTop + list.scroller.clientHeight)].token);
    paint.strokeStyle = this.color("ink");
    paint.lineWidth = 2 * devicePixelRatio;
    paint.strokeRect(first, 1, Math.max(4 * devicePixelRatio, last - first), canvas.height - 2);
  }
}
