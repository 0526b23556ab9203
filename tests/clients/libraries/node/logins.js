// Logs in over TLS with kafkajs, writes two records and reads them:
// node logins.js MECHANISM ADDRESS QUEUE. The environment has CA, and CERTIFICATE, or USER_NAME and
// SECRET, which is a token where the mechanism is OAUTHBEARER.
const { readFileSync } = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const WAIT_MS = 60_000
const VALUES = ['one', 'two']
const [mechanism, address, queue] = process.argv.slice(2)
const { CA, CERTIFICATE, USER_NAME: username, SECRET: password } = process.env

function login() {
  if (mechanism === 'certificate') return undefined
  if (mechanism !== 'OAUTHBEARER') return { mechanism, username, password }
  return { mechanism, oauthBearerProvider: async () => ({ value: password }) }
}

async function main() {
  const own = CERTIFICATE ? readFileSync(CERTIFICATE) : undefined
  const ssl = { ca: [readFileSync(CA)], cert: own, key: own }
  const kafka = new Kafka({ brokers: [address], logLevel: logLevel.NOTHING, ssl, sasl: login() })
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic: queue, messages: VALUES.map((value) => ({ value })) })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: queue })
  await consumer.connect()
  await consumer.subscribe({ topic: queue, fromBeginning: true })
  const found = await new Promise((done, failed) => {
    const values = []
    setTimeout(() => failed(new Error('too late')), WAIT_MS).unref()
    consumer.run({
      eachMessage: async ({ message }) => {
        if (values.push(message.value.toString()) === VALUES.length) done(values)
      },
    })
  })
  await consumer.disconnect()
  console.log(`[${found.join(' ')}]`)
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
