// An echo server for the benches of servers: one event loop. Prints its port, and serves until its
// input ends.
'use strict';
const net = require('node:net');

const server = net.createServer({ noDelay: true }, (socket) => {
  socket.on('data', (data) => socket.write(data));
  socket.on('error', () => socket.destroy());
});
server.listen({ port: 0, host: '127.0.0.1', backlog: 4096 }, () => {
  console.log('port', server.address().port);
});
process.stdin.on('end', () => process.exit(0));
process.stdin.resume();
