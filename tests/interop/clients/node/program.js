// kafkajs by the contract of the client programs (see the README beside). Its consumer can only
// subscribe: whatever it reads, it reads as the one member of a group of its own.
'use strict'

const readline = require('node:readline')
const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } =
  require('kafkajs')
const SnappyCodec = require('kafkajs-snappy')
const lz4 = require('lz4-napi')
const { ZstdCodec } = require('zstd-codec')
const { version } = require('kafkajs/package.json')
const groupActions = require('./member')

const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}
const ACKS = { 0: 0, 1: 1, all: -1 }
const RESOURCES = { topic: ConfigResourceTypes.TOPIC, broker: ConfigResourceTypes.BROKER }
const DEFAULT_CONFIG = 5
const TIMEOUT_MS = 30000

// gzip is built in; the others are registered as its documentation says.
CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: encoder => lz4.compressFrame(encoder.buffer),
  decompress: buffer => lz4.decompressFrame(buffer),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from((await zstd).simple.compress(encoder.buffer)),
  // Frames need not tell their size, and the simple way insists on it.
  decompress: async buffer => Buffer.from((await zstd).streaming.decompress(buffer)),
})
const zstd = new Promise(resolve =>
  ZstdCodec.run(found =>
    resolve({ simple: new found.Simple(), streaming: new found.Streaming() })
  )
)

const asBytes = text => (text === null ? null : Buffer.from(text, 'base64'))

function connect(ask, requestTimeout = TIMEOUT_MS) {
  return new Kafka({
    brokers: ask.servers.split(','),
    clientId: 'kafkajs',
    logLevel: logLevel.NOTHING,
    requestTimeout,
    retry: { retries: 3 }, // each waits twice as long, also after an answer that stays
  })
}

async function withAdmin(ask, work) {
  const admin = connect(ask).admin()
  await admin.connect()
  try {
    return await work(admin)
  } finally {
    await admin.disconnect()
  }
}

async function produce(ask) {
  const options = {}
  if (ask.idempotent !== null) options.idempotent = ask.idempotent
  const producer = connect(ask).producer(options)
  await producer.connect()
  try {
    const results = await producer.send({
      topic: ask.topic,
      acks: ACKS[ask.acks],
      compression: CODECS[ask.codec],
      messages: ask.records.map(record => message(ask, record)),
    })
    return offsetsOf(ask, results || [])
  } finally {
    await producer.disconnect()
  }
}

function message(ask, record) {
  const headers = {}
  for (const [name, value] of record.headers) {
    const earlier = headers[name]
    headers[name] = earlier === undefined ? asBytes(value) : [earlier, asBytes(value)].flat()
  }
  const given = {
    partition: ask.partition,
    key: asBytes(record.key),
    value: asBytes(record.value),
    headers,
  }
  if (record.timestamp_ms !== null) given.timestamp = String(record.timestamp_ms)
  return given
}

// It tells the first offset of each partition only.
function offsetsOf(ask, results) {
  const first = results.find(result => result.partition === ask.partition)
  const base = first === undefined || first.baseOffset === undefined ? -1 : Number(first.baseOffset)
  return ask.records.map((_, n) => (base < 0 ? -1 : base + n))
}

let readers = 0

async function consume(ask) {
  const consumer = connect(ask).consumer({
    groupId: `kafkajs-reader-${process.pid}-${readers++}`,
    maxWaitTimeInMs: 100,
  })
  await consumer.connect()
  try {
    await consumer.subscribe({ topics: [ask.topic], fromBeginning: true })
    return await firstRecords(consumer, ask, await startOf(ask))
  } finally {
    await consumer.disconnect()
  }
}

async function startOf(ask) {
  if (ask.from.at === 'beginning') return null
  if (ask.from.at === 'offset') return ask.from.offset
  return withAdmin(ask, async admin => {
    const found = await admin.fetchTopicOffsetsByTimestamp(ask.topic, ask.from.timestamp_ms)
    return Number(found.find(one => one.partition === ask.partition).offset)
  })
}

function firstRecords(consumer, ask, start) {
  const records = []
  return new Promise((resolve, reject) => {
    const tooLate = new Error(`not all of ${ask.count} records came`)
    const timer = setTimeout(() => reject(tooLate), TIMEOUT_MS)
    const eachMessage = async ({ partition, message }) => {
      const isWanted = partition === ask.partition && Number(message.offset) >= (start || 0)
      if (isWanted && records.length < ask.count) records.push(received(message))
      if (records.length < ask.count) return
      clearTimeout(timer)
      resolve(records)
    }
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    const running = consumer.run({ autoCommit: false, eachMessage })
    const seek = { topic: ask.topic, partition: ask.partition, offset: String(start) }
    running.then(() => start === null || consumer.seek(seek)).catch(reject)
  })
}

function received(message) {
  const asText = data => (data === null || data === undefined ? null : data.toString('base64'))
  const headers = Object.entries(message.headers || {}).flatMap(([name, value]) =>
    [value].flat().map(one => [name, asText(one)])
  )
  return {
    offset: Number(message.offset),
    timestamp_ms: Number(message.timestamp),
    key: asText(message.key),
    value: asText(message.value),
    headers,
  }
}

const actions = {
  ...groupActions(connect),
  hello: async () => ({ client: 'kafkajs', version }),
  produce,
  consume,
  create_topic: ask =>
    withAdmin(ask, async admin => {
      const configEntries = Object.entries(ask.configs).map(([name, value]) => ({ name, value }))
      const topic = {
        topic: ask.topic,
        numPartitions: ask.partitions,
        replicationFactor: 1,
        configEntries,
      }
      const isNew = await admin.createTopics({ topics: [topic], waitForLeaders: true })
      // It swallows this one error.
      if (!isNew) throw Object.assign(new Error('the topic exists'), { code: 36 })
      return null
    }),
  delete_topic: ask =>
    withAdmin(ask, admin => admin.deleteTopics({ topics: [ask.topic] }).then(() => null)),
  add_partitions: ask =>
    withAdmin(ask, admin =>
      admin
        .createPartitions({ topicPartitions: [{ topic: ask.topic, count: ask.total }] })
        .then(() => null)
    ),
  list_topics: ask => withAdmin(ask, admin => admin.listTopics()),
  describe_topic: ask =>
    withAdmin(ask, async admin => {
      const { topics } = await admin.fetchTopicMetadata({ topics: [ask.topic] })
      const partitions = topics[0].partitions.sort((a, b) => a.partitionId - b.partitionId)
      return {
        partitions: partitions.length,
        leaders: partitions.map(one => one.leader),
        replicas: partitions.map(one => one.replicas),
      }
    }),
  describe_cluster: ask =>
    withAdmin(ask, async admin => {
      const { brokers, controller } = await admin.describeCluster()
      return {
        brokers: brokers.map(one => ({ id: one.nodeId, host: one.host, port: one.port })),
        controller,
      }
    }),
  offsets: ask =>
    withAdmin(ask, async admin => {
      const listed = await admin.fetchTopicOffsets(ask.topic)
      const timed = await admin.fetchTopicOffsetsByTimestamp(ask.topic, ask.timestamp_ms)
      const here = found => found.find(one => one.partition === ask.partition)
      return {
        earliest: Number(here(listed).low),
        latest: Number(here(listed).high),
        at_time: Number(here(timed).offset),
      }
    }),
  describe_configs: ask =>
    withAdmin(ask, async admin => {
      const resource = { type: RESOURCES[ask.kind], name: ask.name }
      const { resources } = await admin.describeConfigs({ resources: [resource] })
      return Object.fromEntries(
        resources[0].configEntries.map(entry => [
          entry.configName,
          {
            value: entry.configValue,
            is_default: entry.configSource === DEFAULT_CONFIG,
            is_read_only: entry.readOnly,
          },
        ])
      )
    }),
  // The old request: it replaces everything that was set before.
  alter_configs: ask =>
    withAdmin(ask, async admin => {
      const configEntries = Object.entries(ask.set).map(([name, value]) => ({ name, value }))
      const resource = { type: RESOURCES[ask.kind], name: ask.name, configEntries }
      await admin.alterConfigs({ validateOnly: false, resources: [resource] })
      return null
    }),
  delete_records: ask =>
    withAdmin(ask, async admin => {
      await admin.fetchTopicOffsets(ask.topic) // or it does not know the topic's leaders
      const wanted = { partition: ask.partition, offset: String(ask.before) }
      await admin.deleteTopicRecords({ topic: ask.topic, partitions: [wanted] })
      const listed = await admin.fetchTopicOffsets(ask.topic)
      return Number(listed.find(one => one.partition === ask.partition).low)
    }),
}

// An error may be one of several, or the last of several attempts.
function codeOf(error) {
  const parts = (error.partitions || []).map(partition => partition.error)
  const inner = [error.cause, ...(error.errors || []), ...parts].filter(Boolean)
  const codes = [error.code, ...inner.map(codeOf)]
  const found = codes.find(code => Number.isInteger(code))
  return found === undefined ? null : found
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const ask = JSON.parse(line)
    let answer
    try {
      answer = { ok: await actions[ask.do](ask) }
    } catch (error) {
      answer = { error: { code: codeOf(error), text: `${error.name}: ${error.message}` } }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
}

main()
