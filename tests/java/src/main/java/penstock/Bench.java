package penstock;

import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;

/** The same work as the Python side of the benchmark; answers seconds and counts. Messages are built each time. */
final class Bench {
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private final DefaultMessageStore store;

    Bench(DefaultMessageStore store) {
        this.store = store;
    }

    JSONObject run(JSONObject ask) throws Exception {
        switch (ask.getString("what")) {
            case "put":
                return put(ask);
            case "batch":
                return batch(ask);
            case "get":
                return get(ask);
            case "query":
                return query(ask);
            default:
                throw new IllegalArgumentException("unknown: " + ask);
        }
    }

    private JSONObject put(JSONObject ask) throws Exception {
        int threads = ask.getIntValue("threads");
        int count = ask.getIntValue("count");
        byte[] body = new byte[ask.getIntValue("size")];
        String topic = ask.getString("topic");
        String prefix = ask.getString("prefix");
        CountDownLatch done = new CountDownLatch(threads);
        long[] failed = new long[threads];
        long started = System.nanoTime();
        for (int thread = 0; thread < threads; thread++) {
            int number = thread;
            new Thread(() -> {
                for (int i = number; i < count; i += threads) {
                    MessageExtBrokerInner message = new MessageExtBrokerInner();
                    message.setTopic(topic);
                    message.setQueueId(i & 3);
                    message.setBody(body);
                    message.setBornTimestamp(System.currentTimeMillis());
                    message.setBornHost(HOST);
                    message.setStoreHost(HOST);
                    message.setKeys(prefix + i);
                    message.setTags("TagA");
                    message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
                    if (store.putMessage(message).getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                        failed[number]++;
                    }
                }
                done.countDown();
            }).start();
        }
        done.await();
        long put = System.nanoTime() - started;
        long behind = store.dispatchBehindBytes();
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
        long dispatched = System.nanoTime() - started;
        long failures = 0;
        for (long one : failed) {
            failures += one;
        }
        return new JSONObject().fluentPut("seconds", put / 1e9).fluentPut("dispatched", dispatched / 1e9)
            .fluentPut("behind", behind).fluentPut("failed", failures);
    }

    private JSONObject batch(JSONObject ask) throws Exception {
        int count = ask.getIntValue("count");
        int size = ask.getIntValue("batch");
        byte[] body = new byte[ask.getIntValue("size")];
        String topic = ask.getString("topic");
        String prefix = ask.getString("prefix");
        long failed = 0;
        long started = System.nanoTime();
        for (int i = 0; i < count; i += size) {
            List<Message> messages = new ArrayList<>(size);
            for (int j = 0; j < size; j++) {
                Message message = new Message(topic, "TagA", prefix + (i + j), body);
                messages.add(message);
            }
            MessageExtBatch batch = new MessageExtBatch();
            batch.setTopic(topic);
            batch.setQueueId((i / size) & 3);
            batch.setBornTimestamp(System.currentTimeMillis());
            batch.setBornHost(HOST);
            batch.setStoreHost(HOST);
            batch.setBody(MessageDecoder.encodeMessages(messages));
            if (store.putMessages(batch).getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                failed += size;
            }
        }
        long put = System.nanoTime() - started;
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
        return new JSONObject().fluentPut("seconds", put / 1e9)
            .fluentPut("dispatched", (System.nanoTime() - started) / 1e9).fluentPut("failed", failed);
    }

    private JSONObject get(JSONObject ask) {
        String topic = ask.getString("topic");
        boolean decode = ask.getBooleanValue("decode");
        long messages = 0;
        long bytes = 0;
        long started = System.nanoTime();
        for (int queue = 0; queue < 4; queue++) {
            long offset = 0;
            while (true) {
                GetMessageResult page = store.getMessage("bench", topic, queue, offset, 32, null);
                if (page.getMessageCount() == 0) {
                    page.release();
                    break;
                }
                for (ByteBuffer record : page.getMessageBufferList()) {
                    bytes += record.remaining();
                    if (decode) {
                        MessageDecoder.decode(record, true, false);
                    } else {
                        byte[] copy = new byte[record.remaining()];
                        record.get(copy);
                    }
                }
                messages += page.getMessageCount();
                offset = page.getNextBeginOffset();
                page.release();
            }
        }
        return new JSONObject().fluentPut("seconds", (System.nanoTime() - started) / 1e9)
            .fluentPut("messages", messages).fluentPut("bytes", bytes);
    }

    private JSONObject query(JSONObject ask) {
        String topic = ask.getString("topic");
        String prefix = ask.getString("prefix");
        int count = ask.getIntValue("count");
        int step = ask.getIntValue("step");
        long found = 0;
        long started = System.nanoTime();
        for (int i = 0; i < count; i++) {
            QueryMessageResult result = store.queryMessage(topic, prefix + i * step, 32, 0, Long.MAX_VALUE / 2);
            found += result.getMessageBufferList().size();
            result.release();
        }
        return new JSONObject().fluentPut("seconds", (System.nanoTime() - started) / 1e9).fluentPut("found", found);
    }
}
