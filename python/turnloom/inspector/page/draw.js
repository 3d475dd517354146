// Elements of the page. All text goes in as text, never as markup.

function make(tag, className = "", text = undefined) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

// Text with control characters as `^C`, except for the ends of lines and tabs, and without any that nobody sees: some
// of those turn the direction of what comes after.
const printable = (text) =>
  text
    .replace(/[\0-\x08\x0b-\x1f\x7f]/g, (char) => `^${String.fromCharCode(char.charCodeAt(0) ^ 64)}`)
    .replace(/[\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (char) => `<U+${char.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);

// The text of a token: ends of lines are seen, and with `spaces` all white space.
function visible(text, spaces = false) {
  const shown = printable(text);
  return spaces ? shown.replace(/ /g, "·").replace(/\t/g, "⇥").replace(/\n/g, "↵") : shown.replace(/\n/g, "↵\n");
}

// How surprising a token was, from 0 to 5.
const SURPRISES = [0.9, 0.5, 0.2, 0.05, 0.01];
function surprise(logProb) {
  const probability = Math.exp(logProb);
  const level = SURPRISES.findIndex((limit) => probability >= limit);
  return level < 0 ? SURPRISES.length : level;
}

function tokenNode(segment, place) {
  const text = segment.texts?.[place];
  const node = make("span", `token ${segment.kind}`, text === undefined ? String(segment.ids[place]) : visible(text));
  if (text === "") node.classList.add("part");
  if (segment.kind === "trained") node.classList.add(`s${surprise(segment.log_probs[place])}`);
  return node;
}

function drawTokens(block, isHit) {
  const node = make("div", `tokens${block.segment.texts ? "" : " ids"}${block.start ? "" : " begins"}`);
  for (let place = block.start; place < block.end; place++) {
    const token = tokenNode(block.segment, place);
    const hit = isHit(block.token + place - block.start);
    if (hit) token.classList.add(...hit);
    node.append(token);
  }
  return node;
}

function drawTurnHead(inspection, number) {
  const turn = inspection.turns[number];
  const { transition, prompt_tokens, matched_tokens, output_tokens, item_index, row } = turn.facts;
  const node = make("div", `turn ${transition ?? "start"}`);
  node.append(make("h2", "", `Turn ${number}`));
  if (transition) node.append(make("b", `kind ${transition}`, transition));
  const added = `+${(prompt_tokens - matched_tokens).toLocaleString("en")} prompt, +${output_tokens.toLocaleString("en")} generated`;
  node.append(make("span", "facts", `${row === null ? "no row" : `row ${row}`} · ${added} · item ${item_index}`));
  return node;
}

function drawRepeats(inspection, block) {
  const [other, tokens] = inspection.rows[block.row].repeats;
  return make("p", "repeats", `The row begins with the first ${count(tokens, "token")} of row ${other}, not shown again.`);
}

function drawDivergence(inspection, causes, number) {
  const { facts, divergence } = inspection.turns[number];
  const node = make("div", `divergence ${facts.transition}`);
  const left = `leaves ${count(facts.drift_tokens, "token")} of it`;
  node.append(make("p", "", `The prompt repeats ${count(facts.matched_tokens, "token")} of row ${divergence.held_row} and ${left}.`));
  for (const cause of divergence.causes) {
    const told = make("p", "cause");
    told.append(make("b", "", causes[cause].name), `: ${causes[cause].meaning}. ${causes[cause].advice}`);
    node.append(told);
  }
  const sides = make("div", "sides");
  sides.append(drawExcerpt("Held", divergence.held), drawExcerpt("Prompt", divergence.prompt));
  node.append(sides);
  return node;
}

function drawExcerpt(name, excerpt) {
  const node = make("div", "side");
  node.append(make("h3", "", `${name}: ${count(excerpt.tokens, "token")} from there`));
  const text = make("div", `tokens${excerpt.texts ? "" : " ids"}`);
  const add = (tag, className, id, piece) =>
    text.append(make(tag, `token ${className}`, piece === undefined ? String(id) : visible(piece, true) || "∅"));
  excerpt.before.forEach((id, place) => add("span", "before", id, excerpt.before_texts?.[place]));
  excerpt.ids.forEach((id, place) => {
    const changed = excerpt.changed.some(([start, end]) => place >= start && place < end);
    add(place ? "span" : "mark", place ? (changed ? "changed" : "same") : "first", id, excerpt.texts?.[place]);
  });
  if (!excerpt.ids.length) text.append(make("mark", "token first", "the end"));
  text.querySelector("mark").title = "the first token that differs";
  if (excerpt.tokens > excerpt.ids.length) {
    text.append(make("i", "more", ` … ${count(excerpt.tokens - excerpt.ids.length, "more token")}`));
  }
  node.append(text);
  return node;
}

const MESSAGE_LIMIT = 1500;

function drawMessage(message, opened, query, onOpen) {
  const node = make("article", message.role === "tool" ? "message tool" : "message");
  node.append(make("h3", "", printable(message.role)));
  const add = (className, key, text) => {
    const body = make("div", className);
    const isCut = text.length > MESSAGE_LIMIT && !opened.has(key);
    mark(body, isCut ? text.slice(0, MESSAGE_LIMIT) : text, query);
    if (isCut) {
      const more = make("button", "more", `show all ${count(text.length, "character")}`);
      more.addEventListener("click", () => onOpen(key));
      body.append("… ", more);
    }
    node.append(body);
  };
  for (const [className, text] of messageTexts(message)) add(className, `${className} ${text.length}`, text);
  return node;
}

// What a message says, as [class, text].
function messageTexts(message) {
  const texts = [];
  if (message.reasoning_content) texts.push(["thinking", message.reasoning_content]);
  if (message.content) texts.push(["said", message.content]);
  for (const call of message.tool_calls ?? []) {
    const given = call.function.arguments;
    texts.push(["call", `${call.function.name}(${typeof given === "string" ? given : JSON.stringify(given, null, 1)})`]);
  }
  return texts;
}

function mark(node, text, query) {
  let end = 0;
  for (const match of query ? text.matchAll(query) : []) {
    node.append(printable(text.slice(end, match.index)), make("mark", "", printable(match[0])));
    end = match.index + match[0].length;
  }
  node.append(printable(text.slice(end)));
}

function drawEnd(inspection) {
  const node = make("article", "end");
  node.append(make("h3", "", "End"));
  const list = make("dl");
  const add = (name, value) => list.append(make("dt", "", printable(name)), make("dd", "", printable(value)));
  add("outcome", inspection.outcome);
  if (inspection.reason) add("reason", inspection.reason);
  add("reward", inspection.reward === null ? "none" : String(inspection.reward));
  for (const [name, value] of Object.entries(inspection.metrics)) add(name, String(value));
  for (const defect of inspection.defects) add(`defect at item ${defect.item_index}`, `${defect.code}: ${defect.detail}`);
  node.append(list);
  return node;
}
