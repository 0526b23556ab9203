// Transactions of kafkajs: node transactions.js ADDRESSES PREFIX. What test_more_clients.py says of these programs.
const { Kafka, logLevel } = require('kafkajs')

const QUEUES = 3
const TRANSACTIONS = 5
const EACH = 10
const RECORDS = 200
const BATCH = 40
const END = 'end'
const WAIT_MS = 90_000

const [addresses, prefix] = process.argv.slice(2)
const kafka = new Kafka({ brokers: addresses.split(','), logLevel: logLevel.NOTHING })
const numbers = (count) => [...Array(count).keys()]

// Both producers have the same id; kafkajs asks for it in its first transaction.
async function transactional(id) {
  const producer = kafka.producer({ transactionalId: id, maxInFlightRequests: 1, idempotent: true })
  await producer.connect()
  return producer
}

async function commitAndAbort(producer, names) {
  for (const number of numbers(TRANSACTIONS)) {
    const transaction = await producer.transaction()
    const messages = numbers(EACH).map((index) => ({ value: `${number}.${index}` }))
    await transaction.sendBatch({ topicMessages: names.map((topic) => ({ topic, messages })) })
    await (number % 2 ? transaction.abort() : transaction.commit())
  }
}

// The first batch is aborted, and read again.
async function transform(source, target) {
  const plain = kafka.producer()
  await plain.connect()
  await plain.send({ topic: source, messages: numbers(RECORDS).map((index) => ({ value: `in ${index}` })) })
  await plain.disconnect()

  const producer = await transactional(`${prefix}-transform`)
  const groupId = `${prefix}-group`
  const consumer = kafka.consumer({ groupId, readUncommitted: false, maxWaitTimeInMs: 500 })
  await consumer.connect()
  await consumer.subscribe({ topics: [source], fromBeginning: true })
  let aborted = false
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    consumer.run({
      autoCommit: false,
      eachBatchAutoResolve: false,
      eachBatch: async ({ batch, resolveOffset }) => {
        for (let first = 0; first < batch.messages.length; first += BATCH) {
          const some = batch.messages.slice(first, first + BATCH)
          const last = some[some.length - 1].offset
          const offset = (BigInt(last) + 1n).toString()
          const transaction = await producer.transaction()
          const messages = some.map(({ value }) => ({ value: value.toString().replace('in', 'out') }))
          await transaction.send({ topic: target, messages })
          await transaction.sendOffsets({
            consumerGroupId: groupId,
            topics: [{ topic: source, partitions: [{ partition: 0, offset }] }],
          })
          if (!aborted) {
            aborted = true
            await transaction.abort()
            return // nothing is resolved: the batch comes again
          }
          await transaction.commit()
          resolveOffset(last)
          if (Number(offset) === RECORDS) resolve()
        }
      },
    }).catch(reject)
  })
  await consumer.disconnect()
  await producer.disconnect()
}

// The error of the first producer, in whose transaction the second begins; the second writes the end.
async function fence(first, names) {
  const open = await first.transaction()
  await open.send({ topic: names[0], messages: [{ value: 'of the fenced one' }] })
  const second = await transactional(prefix)
  const transaction = await second.transaction()
  const refused = await open.commit().then(() => 'none', (error) => error.type || error.message)
  await transaction.sendBatch({ topicMessages: names.map((topic) => ({ topic, messages: [{ value: END }] })) })
  await transaction.commit()
  await second.disconnect()
  return refused
}

// What is committed in each queue, up to the end that the second producer wrote.
async function read(names) {
  const consumer = kafka.consumer({ groupId: `${prefix}-readers`, readUncommitted: false, maxWaitTimeInMs: 500 })
  await consumer.connect()
  await consumer.subscribe({ topics: names, fromBeginning: true })
  const seen = {}
  let ended = 0
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    consumer.run({
      eachMessage: async ({ topic, message }) => {
        const value = message.value.toString()
        seen[topic] = [...(seen[topic] || []), value]
        if (value === END && ++ended === names.length) resolve()
      },
    }).catch(reject)
  })
  await consumer.disconnect()
  return seen
}

async function main() {
  const names = numbers(QUEUES).map((number) => `${prefix}-${number}`)
  const [source, target] = [`${prefix}-in`, `${prefix}-out`]
  const first = await transactional(prefix)
  await commitAndAbort(first, names)
  await transform(source, target)
  const all = [...names, target]
  const fenced = await fence(first, all)
  const seen = await read(all)
  await first.disconnect()
  const admin = kafka.admin()
  await admin.connect()
  const [{ partitions }] = await admin.fetchOffsets({ groupId: `${prefix}-group`, topics: [source] })
  await admin.disconnect()
  console.log(JSON.stringify({ fenced, read: seen, offset: Number(partitions[0].offset) }))
}

const late = setTimeout(() => {
  console.error('took too long')
  process.exit(1)
}, WAIT_MS)
main().then(
  () => clearTimeout(late),
  (error) => {
    console.error(error)
    process.exit(1)
  },
)
