// Drives ali-ons by lines on standard input; see ../README.md for the lines.
'use strict';

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const nameSrv = process.argv[2];
const silent = { debug() {}, info() {}, warn() {}, error(...words) { console.error(...words); } };
const httpclient = {}; // asked for, used only to find a name server by URL
const consumers = new Map();
const producers = new Map();

const say = line => process.stdout.write(`@ ${line}\n`);
const nowMicros = () => Math.floor((performance.timeOrigin + performance.now()) * 1000);
const where = m => `number=${m.body.toString()} queue=${m.queueId} offset=${m.queueOffset}`;

const markOf = (user, secret) => (user ? `_${user}_${secret}` : '');

async function produce({ topic, first, count, tags, delay = '0', user, secret }) {
  const mark = markOf(user, secret);
  if (!producers.has(mark)) {
    const made = new Producer({
      nameSrv, httpclient, producerGroup: `stock_producer${mark}`, instanceName: `producer${mark}`,
      logger: silent, sendMsgTimeout: 10000, accessKey: user, secretKey: secret,
    });
    made.on('error', err => console.error('producer', err));
    await made.ready();
    producers.set(mark, made);
  }
  const producer = producers.get(mark);
  const tagOf = tags.split(',');
  for (let number = Number(first); number < Number(first) + Number(count); number++) {
    const message = new Message(topic, tagOf[number % tagOf.length], String(number));
    message.keys = [ `key-${number}` ];
    if (delay !== '0') message.delayTimeLevel = Number(delay);
    // Its own sharding spreads the keys of queue 0 over all queues, so the queue is chosen here.
    const info = await producer.tryToFindTopicPublishInfo(topic);
    const queues = [ ...info.messageQueueList ].sort((a, b) => a.queueId - b.queueId);
    const began = nowMicros();
    const result = await producer.sendKernelImpl(message, queues[number % queues.length]);
    say(`sent name=${topic} number=${number} queue=${result.messageQueue.queueId} offset=${result.queueOffset}`
      + ` id=${result.msgId} begin=${began}`);
  }
}

// A handler: so many milliseconds of work, and some numbers refused so many times.
function handlerOf(name, work, refuse) {
  const refusals = new Map(refuse.split(',').filter(Boolean).map(one => one.split(':')));
  return async message => {
    const number = message.body.toString();
    const what = `name=${name} ${where(message)} tag=${message.tags} topic=${message.topic}`
      + ` tries=${message.reconsumeTimes} begin=${nowMicros()}`;
    say(`begun ${what}`);
    await new Promise(resolve => setTimeout(resolve, Number(work)));
    const left = Number(refusals.get(number) || 0) - 1;
    refusals.set(number, left);
    const ended = nowMicros();
    const kind = left < 0 ? 'got' : 'refused';
    say(`${kind} ${what} end=${ended} at=${Math.floor(ended / 1000)}`);
    if (left >= 0) throw new Error('refused');
  };
}

async function push({ name, group, topic, tags, mode, work = '0', refuse = '', user, secret }) {
  const consumer = new Consumer({
    nameSrv, httpclient, consumerGroup: group, instanceName: name, logger: silent,
    isBroadcast: mode === 'broadcast', consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    accessKey: user, secretKey: secret,
  });
  consumer.on('error', err => console.error('consumer', err));
  consumer.subscribe(topic, tags.split(',').join('||'), handlerOf(name, work, refuse));
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
