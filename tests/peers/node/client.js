// npm's ali-ons, told what to do by one JSON object per line; each is answered by one line.
'use strict';

const readline = require('readline');
const { Producer, Consumer, Message } = require('ali-ons');

const common = { nameSrv: process.argv[2], httpclient: { request: async () => ({ status: 500 }) }, logger: quiet() };
const producers = new Map();
const consumers = new Map();
const consumed = new Map();

function quiet() {
  const silent = () => {};
  return { info: silent, warn: silent, error: silent, debug: silent };
}

async function producer(group) {
  if (!producers.has(group)) {
    const made = new Producer({ ...common, producerGroup: group });
    made.on('error', () => {});
    await made.ready();
    producers.set(group, made);
  }
  return producers.get(group);
}

async function send({ group, messages }) {
  const made = await producer(group);
  const answers = [];
  for (const each of messages) {
    const message = new Message(each.topic, each.tags || '', Buffer.from(each.body, 'base64'));
    if (each.keys) message.keys = [ each.keys ];
    if (each.delay) message.properties.DELAY = String(each.delay);
    const result = await made.send(message);
    answers.push({ status: result.sendStatus, msg_id: result.msgId, queue_offset: Number(result.queueOffset) });
  }
  return answers;
}

async function consume({ name, group, topic, tags = '*', broadcast = false, fails = '' }) {
  const seen = [];
  consumed.set(name, seen);
  const made = new Consumer({ ...common, consumerGroup: group, instanceName: name, isBroadcast: broadcast,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  made.on('error', () => {});
  made.subscribe(topic, tags, async message => {
    seen.push({ body: message.body.toString('base64'), topic: message.topic, tags: message.tags || '',
      keys: message.keys || '', queue_offset: Number(message.queueOffset), reconsume_times: message.reconsumeTimes });
    if (fails && message.body.toString().startsWith(fails)) throw new Error('this one fails');
  });
  await made.ready();
  consumers.set(name, made);
  return {};
}

async function run(ask) {
  if (ask.do === 'send') return send(ask);
  if (ask.do === 'consume') return consume(ask);
  if (ask.do === 'consumed') return consumed.get(ask.name);
  if (ask.do === 'stop') { await consumers.get(ask.name).close(); return {}; }
  throw new Error(`unknown: ${ask.do}`);
}

const lines = readline.createInterface({ input: process.stdin });
let before = Promise.resolve();
lines.on('line', line => {
  before = before.then(async () => {
    let answer;
    try {
      answer = await run(JSON.parse(line));
    } catch (error) {
      answer = { error: String(error) };
    }
    process.stdout.write(JSON.stringify(answer) + '\n');
  });
});
lines.on('close', () => process.exit(0));
