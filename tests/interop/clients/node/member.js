// A member of a consumer group with kafkajs, which knows the eager protocol only. It does not say
// what it gave up: it does so when it begins to join again, which it tells, and when it was fenced,
// which shows in the next assignment.
'use strict'

const fs = require('node:fs')

const RECORDS_PER_COMMIT_MAX = 50
const FETCH_WAIT_MS = 100
const POLL_MS = 100
const METADATA_MAX_AGE_MS = 1000
// As an application sets it that cares: a broker that stands still is given up after one request, and
// this client asks it three times in turn before it asks another. Joining has its own time.
const REQUEST_MS = 10000
// kafkajs's own number. A member that is told nothing but errors does not look for another coordinator:
// only when it has given up does it begin again.
const RETRIES = 5

const pause = ms => new Promise(resolve => setTimeout(resolve, ms))

// Every line reaches the system at once, so that a kill loses none.
class MemberLog {
  constructor(path) {
    this.file = fs.openSync(path, 'a')
  }

  // Its nanoseconds are those of the machine's monotonic clock.
  write(event, said) {
    const at = process.hrtime.bigint()
    const line = JSON.stringify({ e: event, ...said }).slice(1)
    fs.writeSync(this.file, `{"t":${at},${line}\n`)
  }
}

class Member {
  constructor(kafka, ask) {
    this.ask = ask
    this.log = new MemberLog(ask.log)
    this.owned = []
    this.generation = null
    this.isLeaving = false
    this.stalledUntil = 0
    const { member, group, instance, protocol } = ask
    this.log.write('began', { member, group, instance, protocol })
    this.consumer = kafka.consumer({
      groupId: group,
      sessionTimeout: ask.session_ms,
      heartbeatInterval: ask.heartbeat_ms,
      rebalanceTimeout: ask.poll_interval_ms,
      metadataMaxAge: METADATA_MAX_AGE_MS,
      maxWaitTimeInMs: FETCH_WAIT_MS,
      retry: { initialRetryTime: 100, maxRetryTime: 500, retries: RETRIES },
    })
    const { GROUP_JOIN, REBALANCING, HEARTBEAT, CRASH } = this.consumer.events
    this.consumer.on(GROUP_JOIN, ({ payload }) => this.joined(payload))
    this.consumer.on(REBALANCING, () => this.giveUp('revoked'))
    this.consumer.on(HEARTBEAT, ({ payload }) => this.told(payload.groupGenerationId))
    this.consumer.on(CRASH, ({ payload }) => this.crashed(payload))
  }

  // As an application would: a broker may go while it begins.
  async start() {
    for (;;) {
      try {
        return await this.begin()
      } catch (error) {
        if (this.isLeaving || !error.retriable) throw error
        await pause(POLL_MS)
      }
    }
  }

  async begin() {
    await this.consumer.connect()
    const topics = this.ask.pattern === null ? this.ask.topics : [new RegExp(this.ask.pattern)]
    await this.consumer.subscribe({ topics, fromBeginning: true })
    await this.consumer.run({
      autoCommit: false,
      eachBatchAutoResolve: false,
      eachBatch: payload => this.process(payload),
    })
  }

  async leave() {
    this.isLeaving = true
    await this.inHand
    this.giveUp('revoked')
    await this.consumer.disconnect()
    this.log.write('left', {})
  }

  joined({ memberAssignment }) {
    this.giveUp('lost')
    this.generation = null
    for (const [topic, partitions] of Object.entries(memberAssignment)) {
      for (const partition of partitions) this.owned.push([topic, partition])
    }
    this.log.write('assigned', { parts: this.owned, gen: null })
  }

  told(generation) {
    if (generation !== this.generation) this.log.write('generation', { gen: generation })
    this.generation = generation
  }

  giveUp(event) {
    if (this.owned.length > 0) this.log.write(event, { parts: this.owned })
    this.owned = []
  }

  crashed({ error, restart }) {
    this.giveUp('lost')
    if (!restart) this.log.write('error', { why: `${error.name}: ${error.message}` })
  }

  owns(topic, partition) {
    return this.owned.some(one => one[0] === topic && one[1] === partition)
  }

  async process(payload) {
    let finished
    this.inHand = new Promise(resolve => (finished = resolve))
    try {
      await this.processBatch(payload)
    } finally {
      finished()
    }
  }

  async processBatch({
    batch, resolveOffset, heartbeat, isRunning, isStale, commitOffsetsIfNecessary
  }) {
    const { topic, partition } = batch
    let next = null
    let count = 0
    for (const message of batch.messages) {
      // Without a heartbeat: a member that works too long is removed from the group.
      while (Date.now() < this.stalledUntil && !this.isLeaving) await pause(POLL_MS)
      const isOver = this.isLeaving || !isRunning() || isStale() || !this.owns(topic, partition)
      if (isOver || count === RECORDS_PER_COMMIT_MAX) break
      const text = message.value === null ? '' : message.value.toString()
      this.log.write('processed', { topic, p: partition, o: Number(message.offset), v: text })
      resolveOffset(message.offset)
      next = Number(message.offset) + 1
      count += 1
    }
    if (next !== null) await this.commit(topic, partition, next, commitOffsetsIfNecessary)
    await heartbeat()
  }

  async commit(topic, partition, next, send) {
    const began = process.hrtime.bigint()
    const offsets = [[topic, partition, next]]
    try {
      await send({ topics: [{ topic, partitions: [{ partition, offset: String(next) }] }] })
    } catch (error) {
      this.log.write('refused', { offsets, why: `${error.name}: ${error.message}` })
      throw error // the client joins again
    }
    // JSON knows no big integers; a number has all the digits for a hundred days of uptime.
    this.log.write('committed', { from: Number(began), offsets })
  }
}

const members = new Map()

module.exports = connect => ({
  join: async ask => {
    const member = new Member(connect(ask, REQUEST_MS), ask)
    members.set(ask.member, member)
    member.start().catch(error => member.log.write('error', { why: String(error) }))
    return null
  },
  stall: async ask => {
    members.get(ask.member).stalledUntil = Date.now() + ask.ms
    return null
  },
  leave: async ask => {
    await members.get(ask.member).leave()
    members.delete(ask.member)
    return null
  },
})
