// @platformatic/kafka: writes records with keys to a queue, and reads them by a consumer group.
import { Consumer, MessagesStreamModes, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'

const [address, queue] = process.argv.slice(2)
const producer = new Producer({ clientId: queue, bootstrapBrokers: [address], serializers: stringSerializers })
const messages = Array.from({ length: 100 }, (_, number) => ({
  topic: queue, key: `k${number % 7}`, value: `v${number}`, headers: { h: '1' },
}))
await producer.send({ messages })
await producer.close()
const consumer = new Consumer({
  groupId: queue, clientId: queue, bootstrapBrokers: [address], deserializers: stringDeserializers,
})
const stream = await consumer.consume({
  topics: [queue], mode: MessagesStreamModes.EARLIEST, autocommit: false, sessionTimeout: 10000, heartbeatInterval: 500,
})
const seen = new Set()
for await (const message of stream) {
  seen.add(message.value)
  if (seen.size === 100) {
    await message.commit()
    break
  }
}
await consumer.close(true)
console.log(JSON.stringify(seen.size))
