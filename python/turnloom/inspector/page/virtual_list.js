// A scrolling list of blocks of unknown height, of which only those in view are in the document.

class VirtualList {
  // `scroller` scrolls; `render(index)` makes the element of a block; `guess(index)` is its height in pixels until it
  // has been measured.
  constructor(scroller, count, render, guess) {
    Object.assign(this, { scroller, count, render, guess, nodes: new Map(), onMove: () => {} });
    this.heights = Float64Array.from({ length: count }, (_, index) => guess(index));
    this.tops = new Float64Array(count + 1);
    this.space = make("div", "space");
    this.window = make("div", "window");
    this.space.append(this.window);
    scroller.append(this.space);
    this.add(0);
    scroller.addEventListener("scroll", () => this.soon(), { passive: true });
    this.width = scroller.clientWidth;
    new ResizeObserver(() => this.resized()).observe(scroller);
  }

  // Sums the heights again, from a block on.
  add(from) {
    for (let index = from; index < this.count; index++) this.tops[index + 1] = this.tops[index] + this.heights[index];
    // Room below, so that the last block, too, can stand at the top.
    this.space.style.height = `${this.tops[this.count] + this.scroller.clientHeight * 0.7}px`;
  }

  soon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.update();
    });
  }

  resized() {
    if (this.scroller.clientWidth !== this.width) {
      this.width = this.scroller.clientWidth;
      this.clear();
    }
    this.soon();
  }

  // The block at a height.
  at(top) {
    let low = 0;
    let high = this.count - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tops[middle] <= top) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  get first() {
    return this.at(this.scroller.scrollTop + 1);
  }

  // Puts the blocks in view into the document, and keeps the first one where it is while heights become known.
  update() {
    if (!this.count || !this.scroller.clientHeight) return;
    for (let round = 0; round < 4; round++) {
      const top = this.scroller.scrollTop;
      const view = this.scroller.clientHeight;
      const anchor = this.at(top);
      const within = top - this.tops[anchor];
      const first = this.at(Math.max(0, top - view / 2));
      const last = this.at(top + view * 1.5);
      this.fill(first, last);
      if (!this.measure(first, last)) break;
      const wanted = this.tops[anchor] + within;
      if (Math.abs(wanted - this.scroller.scrollTop) > 0.5) this.scroller.scrollTop = wanted;
    }
    this.onMove();
  }

  fill(first, last) {
    for (const [index, node] of this.nodes) {
      if (index < first || index > last) {
        node.remove();
        this.nodes.delete(index);
      }
    }
    let before = null;
    for (let index = last; index >= first; index--) {
      let node = this.nodes.get(index);
      if (!node) {
        node = this.render(index);
        node.dataset.block = index;
        this.nodes.set(index, node);
        this.window.insertBefore(node, before);
      }
      before = node;
    }
    this.window.style.transform = `translateY(${this.tops[first]}px)`;
  }

  // Whether a height was not as assumed.
  measure(first, last) {
    let changed = false;
    for (let index = first; index <= last; index++) {
      const height = this.nodes.get(index).getBoundingClientRect().height;
      if (Math.abs(height - this.heights[index]) > 0.5) {
        this.heights[index] = height;
        changed = true;
      }
    }
    if (changed) {
      this.add(first);
      this.window.style.transform = `translateY(${this.tops[first]}px)`;
    }
    return changed;
  }

  clear() {
    for (const node of this.nodes.values()) node.remove();
    this.nodes.clear();
  }

  // Draws what is in view again.
  redraw() {
    this.clear();
    this.update();
  }

  // Scrolls to a block; `find(node)` may name the element in it that has to be seen.
  show(index, find) {
    if (!this.count) return;
    this.scroller.scrollTop = this.tops[index];
    this.update();
    this.scroller.scrollTop = this.tops[index];
    this.update();
    const inner = find?.(this.nodes.get(index));
    if (!inner) return;
    const box = this.scroller.getBoundingClientRect();
    this.scroller.scrollTop += inner.getBoundingClientRect().top - box.top - box.height / 3;
    this.update();
  }
}
