// Search: tokens first, in the order of the stream, then messages.

class Search {
  constructor(stream, conversation) {
    Object.assign(this, { stream, conversation, query: null, hits: [], current: -1 });
  }

  // All text of the stream, and where in it each token begins; made once.
  get text() {
    if (!this.whole) {
      const pieces = [];
      for (const { kind, segment, start, end } of this.stream) {
        if (kind !== "tokens") continue;
        for (let place = start; place < end; place++) {
          pieces.push(segment.texts ? segment.texts[place] : `${segment.ids[place]} `);
        }
      }
      this.starts = new Uint32Array(pieces.length + 1);
      pieces.forEach((piece, token) => (this.starts[token + 1] = this.starts[token] + piece.length));
      this.whole = pieces.join("");
    }
    return this.whole;
  }

  // Finds a text, whatever its case; an empty one ends the search.
  find(words) {
    this.query = words ? new RegExp(words.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "giu") : null;
    this.hits = [];
    this.current = -1;
    if (!this.query) return;
    for (const match of this.text.matchAll(this.query)) {
      const last = this.tokenAt(match.index + match[0].length - 1);
      this.hits.push({ tokens: [this.tokenAt(match.index), last + 1] });
    }
    this.conversation.forEach((block, index) => {
      const found = block.kind === "message" && messageTexts(block.message).some(([, text]) => text.match(this.query));
      if (found) this.hits.push({ message: index });
    });
  }

  tokenAt(offset) {
    let low = 0;
    let high = this.starts.length - 2;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= offset) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  // The classes of a token of the stream; null where nothing was found.
  classesOf(token) {
    let low = 0;
    let high = this.hits.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.hits[middle].tokens && this.hits[middle].tokens[1] <= token) low = middle + 1;
      else high = middle;
    }
    const hit = this.hits[low];
    if (!hit?.tokens || hit.tokens[0] > token) return null;
    return low === this.current ? ["hit", "current"] : ["hit"];
  }

  // The next hit, or the one before, around the ends.
  step(by) {
    if (!this.hits.length) return null;
    const from = this.current < 0 && by < 0 ? 0 : this.current;
    this.current = (from + by + this.hits.length) % this.hits.length;
    return this.hits[this.current];
  }

  get told() {
    if (!this.query) return "";
    if (!this.hits.length) return "not found";
    return `${(this.current + 1).toLocaleString("en")} of ${this.hits.length.toLocaleString("en")}`;
  }
}
