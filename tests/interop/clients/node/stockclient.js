// Drives ali-ons by lines on standard input; see ../README.md for the lines.
'use strict';

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const nameSrv = process.argv[2];
const silent = { debug() {}, info() {}, warn() {}, error(...words) { console.error(...words); } };
const httpclient = {}; // asked for, used only to find a name server by URL
const consumers = new Map();
let producer;

const say = line => process.stdout.write(`@ ${line}\n`);
const where = m => `number=${m.body.toString()} queue=${m.queueId} offset=${m.queueOffset}`;

async function produce({ topic, first, count, tags }) {
  if (!producer) {
    producer = new Producer({
      nameSrv, httpclient, producerGroup: 'stock_producer', instanceName: 'producer', logger: silent,
      sendMsgTimeout: 10000,
    });
    producer.on('error', err => console.error('producer', err));
    await producer.ready();
  }
  const tagOf = tags.split(',');
  for (let number = Number(first); number < Number(first) + Number(count); number++) {
    const message = new Message(topic, tagOf[number % tagOf.length], String(number));
    message.keys = [ `key-${number}` ];
    // Its own sharding spreads the keys of queue 0 over all queues, so the queue is chosen here.
    const info = await producer.tryToFindTopicPublishInfo(topic);
    const queues = [ ...info.messageQueueList ].sort((a, b) => a.queueId - b.queueId);
    const result = await producer.sendKernelImpl(message, queues[number % queues.length]);
    say(`sent number=${number} queue=${result.messageQueue.queueId} offset=${result.queueOffset}`
      + ` id=${result.msgId}`);
  }
}

async function push({ name, group, topic, tags, mode }) {
  const consumer = new Consumer({
    nameSrv, httpclient, consumerGroup: group, instanceName: name, logger: silent,
    isBroadcast: mode === 'broadcast', consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  consumer.on('error', err => console.error('consumer', err));
  consumer.subscribe(topic, tags.split(',').join('||'), async message => {
    say(`got name=${name} ${where(message)} tag=${message.tags} at=${Date.now()}`);
  });
  await consumer.ready();
  consumers.set(name, consumer);
}

async function stop({ name }) {
  await consumers.get(name).close();
  consumers.delete(name);
}

async function main() {
  const verbs = { produce, push, stop };
  say('ready');
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [ verb, ...words ] = line.trim().split(' ');
    const options = Object.fromEntries(words.map(word => {
      const at = word.indexOf('=');
      return [ word.slice(0, at), word.slice(at + 1) ];
    }));
    try {
      await verbs[verb](options);
      say(`done verb=${verb}`);
    } catch (err) {
      say(`failed verb=${verb} reason=${Buffer.from(String(err)).toString('base64')}`);
    }
  }
  process.exit(0);
}

main();
