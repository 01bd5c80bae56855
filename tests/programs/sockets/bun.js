// `bun.js serve|ask PORT`: a server and a client of Bun's own (not of Node's modules). The protocol
// is that of servers.py; what Bun.serve gives is on the next port.
'use strict';
const [role, port] = [process.argv[2], Number(process.argv[3])];
const [CONNECTIONS, SIZES] = [12, [0, 1, 700, 5000, 3, 70000]];

function frame(size, letter) {
  const data = Buffer.alloc(4 + size, letter);
  data.writeUInt32BE(size);
  return data;
}

// Writes what the kernel takes, and the rest when it takes more.
function flush(near) {
  const state = near.data;
  while (state.owed.length) {
    const done = near.write(state.owed);
    if (done <= 0) {
      return;
    }
    state.owed = state.owed.subarray(done);
  }
  if (state.ended) {
    near.end();
  }
}

function answer(near, part) {
  const state = near.data;
  state.got = Buffer.concat([state.got, part]);
  const answers = [state.owed];
  while (state.got.length >= 4 && state.got.length >= 4 + state.got.readUInt32BE(0)) {
    const size = 4 + state.got.readUInt32BE(0);
    answers.push(state.got.subarray(0, 4),
      Buffer.from(state.got.toString('latin1', 4, size).toUpperCase(), 'latin1'));
    state.got = state.got.subarray(size);
  }
  state.owed = Buffer.concat(answers);
  flush(near);
}

function serve() {
  Bun.listen({hostname: '127.0.0.1', port, allowHalfOpen: true, socket: {
    open: (near) => { near.data = {got: Buffer.alloc(0), owed: Buffer.alloc(0)}; },
    data: answer,
    drain: flush,
    end: (near) => { near.data.ended = true; flush(near); },
    error: () => {},
  }});
  Bun.serve({hostname: '127.0.0.1', port: port + 1, async fetch(request) {
    return new Response((await request.text()).toUpperCase());
  }});
}

// All requests at once; whether all that is expected has come.
function talk() {
  return new Promise((done, failed) => {
    const expected = Buffer.concat(SIZES.map((size) => frame(size, 'Q')));
    let got = Buffer.alloc(0);
    Bun.connect({hostname: '127.0.0.1', port, socket: {
      open: (near) => {
        near.data = {owed: Buffer.concat(SIZES.map((size) => frame(size, 'q')))};
        flush(near);
      },
      drain: flush,
      data: (near, part) => {
        got = Buffer.concat([got, part]);
        if (got.length >= expected.length) {
          done(got.equals(expected));
          near.end();
        }
      },
      close: () => failed(new Error('closed')),
      error: (near, error) => failed(error),
    }}).catch(failed);
  });
}

async function ask() {
  const all = Array.from({length: CONNECTIONS}, talk);
  console.log('sockets', (await Promise.all(all)).every((good) => good));
  const asked = SIZES.map(async (size) => {
    const body = 'q'.repeat(size);
    const response = await fetch(`http://127.0.0.1:${port + 1}/`, {method: 'POST', body});
    return await response.text() === body.toUpperCase();
  });
  console.log('requests', (await Promise.all(asked)).every((good) => good));
  console.log('refused', await Bun.connect({hostname: '127.0.0.1', port: 1, socket: {
    data() {}, connectError() {},
  }}).then(() => 'no', (error) => error.code));
  process.exit(0);
}

role === 'serve' ? serve() : ask();
