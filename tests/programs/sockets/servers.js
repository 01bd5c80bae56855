// A server of one kind or another: `servers.js KIND PORT`. The protocol is that of servers.py.
'use strict';
const cluster = require('cluster');
const net = require('net');
const child = require('child_process');

const [kind, port] = [process.argv[2], Number(process.argv[3])];

function serve(near) {
  let got = Buffer.alloc(0);
  near.on('data', (part) => {
    got = Buffer.concat([got, part]);
    while (got.length >= 4 && got.length >= 4 + got.readUInt32BE(0)) {
      const size = 4 + got.readUInt32BE(0);
      near.write(Buffer.concat([got.subarray(0, 4),
        Buffer.from(got.toString('latin1', 4, size).toUpperCase(), 'latin1')]));
      got = got.subarray(size);
    }
  });
  near.on('end', () => near.end());
  near.on('error', () => near.destroy());
}

function listen(more) {
  return net.createServer({allowHalfOpen: true, ...more}, serve).listen(port, '127.0.0.1', 100);
}

const kinds = {
  // One loop.
  alone: () => listen(),
  // Two processes; the first accepts and hands on in turn.
  cluster: () => {
    if (cluster.isPrimary) {
      cluster.fork();
      cluster.fork();
    } else {
      listen();
    }
  },
  // Two processes that share the listener.
  shared: () => {
    cluster.schedulingPolicy = cluster.SCHED_NONE;
    kinds.cluster();
  },
  // A process started by hand gets each connection from who accepts it.
  passed: () => {
    const other = child.fork(__filename, ['taker', String(port)]);
    net.createServer({allowHalfOpen: true, pauseOnConnect: true},
      (near) => other.send('take', near)).listen(port, '127.0.0.1', 100);
  },
  taker: () => process.on('message', (word, near) => {
    if (near) {
      near.allowHalfOpen = true;
      serve(near);
      near.resume();
    }
  }),
};

process.on('disconnect', () => process.exit(0));
kinds[kind]();
