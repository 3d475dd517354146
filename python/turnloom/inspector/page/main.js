const { inspection, kinds, causes } = JSON.parse(document.getElementById("data").textContent);
const element = (id) => document.getElementById(id);
const stream = streamBlocks(inspection);
const conversation = conversationBlocks(inspection);
const search = new Search(stream, conversation);
const overview = new Overview(element("overview"), stream, inspection.turns);
const opened = new Map(); // by block of the conversation: the texts that are shown in full
let cursor = null; // the token looked at: {block, place}
let turnInView = -1;

// The two lists

const streamList = new VirtualList(element("stream"), stream.length, drawStreamBlock, guessStreamBlock);
const messageList = new VirtualList(element("conversation"), conversation.length, drawConversationBlock, () => 90);

function drawStreamBlock(index) {
  const block = stream[index];
  if (block.kind === "turn") return drawTurnHead(inspection, block.turn);
  if (block.kind === "repeats") return drawRepeats(inspection, block);
  if (block.kind === "divergence") return drawDivergence(inspection, causes, block.turn);
  const node = drawTokens(block, (token) => search.classesOf(token));
  if (cursor?.block === index) node.children[cursor.place - block.start].classList.add("looked-at");
  return node;
}

function guessStreamBlock(index) {
  const block = stream[index];
  return block.kind === "tokens" ? 24 + (block.end - block.start) * 1.2 : block.kind === "divergence" ? 220 : 56;
}

function drawConversationBlock(index) {
  const block = conversation[index];
  if (block.kind === "message") {
    const shown = opened.get(index) ?? new Set();
    return drawMessage(block.message, shown, search.query, (key) => {
      opened.set(index, shown.add(key));
      messageList.redraw();
    });
  }
  if (block.kind === "end") return drawEnd(inspection);
  const button = make("button", "go", `Turn ${block.turn}`);
  button.classList.toggle("now", block.turn === turnInView);
  button.addEventListener("click", () => goToTurn(block.turn));
  const { transition } = inspection.turns[block.turn].facts;
  if (transition) button.append(make("b", `kind ${transition}`, transition));
  return button;
}

streamList.onMove = () => {
  const block = stream[streamList.first];
  if (!block) return;
  element("place").textContent =
    `turn ${block.turn} · row ${block.row} · token ${block.token.toLocaleString("en")} of ${overview.tokens.toLocaleString("en")}`;
  overview.look(streamList);
  if (block.turn !== turnInView) {
    turnInView = block.turn;
    // What was asked stands above the first turn, and is read with it.
    const isHead = ({ kind, turn }) => kind === "turn" && turn === turnInView;
    messageList.show(turnInView === 0 ? 0 : conversation.findIndex(isHead));
    for (const node of messageList.window.querySelectorAll(".go")) {
      node.classList.toggle("now", conversation[node.dataset.block].turn === turnInView);
    }
  }
};

// Going somewhere

function goToTurn(turn) {
  const index = stream.findIndex((block) => block.kind === "turn" && block.turn === turn);
  if (index >= 0) streamList.show(index);
}

// To the next block of which something holds, or the one before.
function goOn(step, holds) {
  const here = streamList.first;
  const found = step > 0
    ? stream.findIndex((block, index) => index > here && holds(block))
    : stream.findLastIndex((block, index) => index < here && holds(block));
  if (found >= 0) streamList.show(found);
}

const isTurn = ({ kind }) => kind === "turn";
const isDrift = ({ kind, turn }) => kind === "turn" && inspection.turns[turn].divergence !== null;

function blockOfToken(token) {
  return stream.findLastIndex((block) => block.kind === "tokens" && block.token <= token);
}

function goToHit(step) {
  const hit = search.step(step);
  element("found").textContent = search.told;
  if (!hit) return;
  if (hit.tokens) {
    showPane("stream");
    streamList.clear();
    const index = blockOfToken(hit.tokens[0]);
    streamList.show(index, (node) => node?.children[hit.tokens[0] - stream[index].token]);
  } else {
    showPane("conversation");
    messageList.show(hit.message, (node) => node?.querySelector("mark"));
  }
}

function searchFor(words) {
  search.find(words);
  element("found").textContent = search.told;
  streamList.redraw();
  messageList.redraw();
  if (search.hits.length) goToHit(1);
}

// The token looked at

function lookAt(block, place) {
  document.querySelector(".looked-at")?.classList.remove("looked-at");
  cursor = { block, place };
  const { segment, row } = stream[block];
  const node = streamList.nodes.get(block)?.children[place - stream[block].start];
  node?.classList.add("looked-at");
  const position = segment.start === null ? "removed" : `position ${(segment.start + place).toLocaleString("en")}`;
  const logProb = segment.log_probs?.[place];
  const chance = logProb === undefined ? "" : ` · logprob ${logProb} (${(100 * Math.exp(logProb)).toPrecision(3)} %)`;
  const text = segment.texts ? ` ${JSON.stringify(segment.texts[place])}` : "";
  element("token").textContent =
    `id ${segment.ids[place]}${text} · ${segment.kind}: ${kinds[segment.kind]}${chance} · row ${row}, ${position} · turn ${segment.turn}`;
}

function moveCursor(by) {
  let { block, place } = cursor ?? { block: streamList.first, place: -1 };
  if (cursor && !streamList.nodes.has(block)) [block, place] = [streamList.first, -1];
  place += by;
  while (stream[block]?.kind !== "tokens" || place < stream[block].start || place >= stream[block].end) {
    block += by;
    if (!stream[block]) return;
    place = by > 0 ? stream[block].start : stream[block].end - 1;
  }
  if (!streamList.nodes.has(block)) streamList.show(block);
  lookAt(block, place);
  streamList.nodes.get(block).children[place - stream[block].start].scrollIntoView({ block: "nearest" });
}

function lookAtNode(event) {
  const node = event.target.closest?.(".token");
  const block = Number(node?.parentElement.dataset.block);
  if (node && stream[block]?.kind === "tokens") {
    lookAt(block, stream[block].start + Array.prototype.indexOf.call(node.parentElement.children, node));
  }
}

element("stream").addEventListener("pointerover", lookAtNode);
element("stream").addEventListener("click", lookAtNode);

if (stream.length) {
  new ResizeObserver(() => overview.draw(streamList)).observe(element("overview"));
  element("overview").addEventListener("click", (event) => streamList.show(blockOfToken(overview.tokenAt(event))));
} else {
  element("stream").replaceChildren(make("p", "nothing", "No item of this answer has sound token ids: there is nothing to train on."));
  element("overview").hidden = true;
}
streamList.update();
messageList.update();
