// The rollout as blocks: what the two lists show, in order.

const CHUNK = 160;

// The token stream: rows, and in them the turns, their divergence, and their tokens in chunks that end with a line, or
// with a word, where there is one.
function streamBlocks(inspection) {
  const blocks = [];
  let token = 0;
  inspection.rows.forEach((row, number) => {
    let turn = -1;
    for (const segment of row.segments) {
      if (segment.turn !== turn) {
        turn = segment.turn;
        const isFirst = segment === row.segments[0];
        blocks.push({ kind: "turn", turn, row: number, token, isFirst });
        if (inspection.turns[turn].divergence) blocks.push({ kind: "divergence", turn, row: number, token });
        if (isFirst && row.repeats) blocks.push({ kind: "repeats", turn, row: number, token });
      }
      for (let start = 0; start < segment.ids.length; ) {
        const end = chunkEnd(segment, start);
        blocks.push({ kind: "tokens", turn, row: number, token, segment, start, end });
        token += end - start;
        start = end;
      }
    }
  });
  return blocks;
}

function chunkEnd({ ids, texts }, start) {
  const most = start + CHUNK * 1.5;
  if (ids.length <= most) return ids.length;
  const places = Array.from({ length: CHUNK }, (_, back) => most - back);
  const endsLine = (end) => texts?.[end - 1].endsWith("\n");
  const endsWord = (end) => texts?.[end].startsWith(" ");
  return places.find(endsLine) ?? places.find(endsWord) ?? start + CHUNK;
}

// The conversation: what the request asked, the messages of each turn, and how it ended.
function conversationBlocks(inspection) {
  const blocks = inspection.input.map((message) => ({ kind: "message", message, turn: 0 }));
  inspection.turns.forEach((turn, number) => {
    blocks.push({ kind: "turn", turn: number });
    for (const message of turn.messages) blocks.push({ kind: "message", message, turn: number });
  });
  const last = Math.max(0, inspection.turns.length - 1);
  for (const message of inspection.messages_after) blocks.push({ kind: "message", message, turn: last });
  blocks.push({ kind: "end", turn: last });
  return blocks;
}
