// A client of servers.py and servers.js: `clients.js PORT`. What it finds is printed.
'use strict';
const net = require('net');

const port = Number(process.argv[2]);

function frame(data) {
  const head = Buffer.alloc(4);
  head.writeUInt32BE(data.length);
  return Buffer.concat([head, data]);
}

// All requests at once; what came back until the end.
function talk(sizes) {
  return new Promise((done, failed) => {
    const parts = [];
    const near = net.connect({port, host: '127.0.0.1', allowHalfOpen: true}, () => {
      for (const size of sizes) {
        near.write(frame(Buffer.alloc(size, 'q')));
      }
      near.end();
    });
    near.on('data', (part) => parts.push(part));
    near.on('end', () => {
      const expected = Buffer.concat(sizes.map((size) => frame(Buffer.alloc(size, 'Q'))));
      done(Buffer.concat(parts).equals(expected));
    });
    near.on('error', failed);
  });
}

function refused() {
  return new Promise((done) => {
    net.connect(1, '127.0.0.1').on('error', (error) => done(error.code));
  });
}

(async () => {
  console.log('one', await talk([1, 70000, 0, 3]));
  const many = Array.from({length: 30}, (_, at) => talk([at, at * 1000, 5]));
  console.log('many', (await Promise.all(many)).every((good) => good));
  console.log('refused', await refused());
})();
