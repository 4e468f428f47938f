package penstock;

import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * The Java side of bench/store: the same work as the Python side; answers seconds, and counts that both must share.
 * Messages are built each time, with one key and one tag, for four queues in turn.
 */
final class Bench {
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final int QUEUES = 4;
    private final DefaultMessageStore store;

    Bench(DefaultMessageStore store) {
        this.store = store;
    }

    JSONObject run(JSONObject ask) throws Exception {
        switch (ask.getString("what")) {
            case "put":
                return put(ask);
            case "in-flight":
                return inFlight(ask);
            case "batch":
                return batch(ask);
            case "get":
                return get(ask);
            case "query":
                return query(ask);
            case "rebuild":
                return rebuild(ask);
            default:
                throw new IllegalArgumentException("unknown: " + ask);
        }
    }

    // -- putting -------------------------------------------------------------------------------------------------

    private static MessageExtBrokerInner message(String topic, String key, int queue, byte[] body) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setQueueId(queue);
        message.setBody(body);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        message.setKeys(key);
        message.setTags("TagA");
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    /** Puts from some threads, each waiting for every answer; with "sample", also how far dispatch is behind. */
    private JSONObject put(JSONObject ask) throws Exception {
        int threads = ask.getIntValue("threads");
        int count = ask.getIntValue("count");
        byte[] body = new byte[ask.getIntValue("size")];
        String topic = ask.getString("topic");
        String prefix = ask.getString("prefix");
        CountDownLatch done = new CountDownLatch(threads);
        AtomicLong failed = new AtomicLong();
        Lag lag = ask.containsKey("sample") ? new Lag(store, ask.getIntValue("sample")) : null;
        if (lag != null) {
            lag.start();
        }
        long started = System.nanoTime();
        for (int thread = 0; thread < threads; thread++) {
            int number = thread;
            new Thread(() -> {
                long refused = 0;
                for (int i = number; i < count; i += threads) {
                    MessageExtBrokerInner message = message(topic, prefix + i, i % QUEUES, body);
                    if (store.putMessage(message).getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                        refused++;
                    }
                }
                failed.addAndGet(refused);
                done.countDown();
            }).start();
        }
        done.await();
        long put = System.nanoTime() - started;
        if (lag != null) {
            lag.end();
        }
        JSONObject answer = putAnswer(started, put, failed.get());
        return lag == null ? answer : answer.fluentPut("most_behind", lag.most);
    }

    /** Puts from one thread that does not wait for an answer as long as fewer than "in_flight" are due. */
    private JSONObject inFlight(JSONObject ask) throws Exception {
        int count = ask.getIntValue("count");
        int inFlight = ask.getIntValue("in_flight");
        byte[] body = new byte[ask.getIntValue("size")];
        String topic = ask.getString("topic");
        String prefix = ask.getString("prefix");
        Semaphore due = new Semaphore(inFlight);
        AtomicLong failed = new AtomicLong();
        long started = System.nanoTime();
        for (int i = 0; i < count; i++) {
            MessageExtBrokerInner message = message(topic, prefix + i, i % QUEUES, body);
            due.acquire();
            store.asyncPutMessage(message).whenComplete((result, problem) -> {
                if (problem != null || result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                    failed.incrementAndGet();
                }
                due.release();
            });
        }
        due.acquire(inFlight);
        return putAnswer(started, System.nanoTime() - started, failed.get());
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
                Message message = new Message();
                message.setTopic(topic);
                message.setKeys(prefix + (i + j));
                message.setTags("TagA");
                message.setBody(body);
                messages.add(message);
            }
            MessageExtBatch batch = new MessageExtBatch();
            batch.setTopic(topic);
            batch.setQueueId(i / size % QUEUES);
            batch.setBornTimestamp(System.currentTimeMillis());
            batch.setBornHost(HOST);
            batch.setStoreHost(HOST);
            batch.setBody(MessageDecoder.encodeMessages(messages));
            if (store.putMessages(batch).getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                failed += size;
            }
        }
        return putAnswer(started, System.nanoTime() - started, failed);
    }

    /** "dispatched" is when the last message was in its queue, counted from the same start as "seconds". */
    private JSONObject putAnswer(long started, long took, long failed) throws Exception {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
        return new JSONObject().fluentPut("seconds", took / 1e9)
            .fluentPut("dispatched", (System.nanoTime() - started) / 1e9)
            .fluentPut("failed", failed).fluentPut("log_bytes", store.getMaxPhyOffset());
    }

    // -- reading -------------------------------------------------------------------------------------------------

    /** Pages of 32 from each queue in turn, at most "most" messages of each. */
    private JSONObject get(JSONObject ask) {
        String topic = ask.getString("topic");
        boolean decode = ask.getBooleanValue("decode");
        long most = ask.getLongValue("most");
        long messages = 0;
        long bytes = 0;
        long started = System.nanoTime();
        for (int queue = 0; queue < QUEUES; queue++) {
            long offset = 0;
            while (offset < most) {
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

    // -- rebuilding ----------------------------------------------------------------------------------------------

    /**
     * Opens a store that has only its log and waits until queues and index are there. start() looks only once a second
     * whether dispatch is done, so it runs in a thread of its own and this one looks every millisecond.
     */
    private static JSONObject rebuild(JSONObject ask) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        Properties settings = new Properties();
        ask.getJSONObject("settings").forEach((name, value) -> settings.put(name, value.toString()));
        MixAll.properties2Object(settings, config);
        config.setStorePathRootDir(ask.getString("path"));
        config.setStorePathCommitLog(ask.getString("path") + "/commitlog");
        config.setHaListenPort(0);
        long started = System.nanoTime();
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("peer", false),
            (topic, queue, offset, tags, time, filter, properties) -> { }, new BrokerConfig());
        if (!store.load()) {
            throw new IllegalStateException("load failed");
        }
        long loaded = System.nanoTime();
        Exception[] problem = new Exception[1];
        Thread start = new Thread(() -> {
            try {
                store.start();
            } catch (Exception error) {
                problem[0] = error;
            }
        });
        start.start();
        while (store.dispatchBehindBytes() > 0 && problem[0] == null) {
            Thread.sleep(1);
        }
        long dispatched = System.nanoTime();
        start.join();
        if (problem[0] != null) {
            throw problem[0];
        }
        AtomicLong messages = new AtomicLong();
        store.getConsumeQueueTable().forEach((topic, queues) ->
            queues.forEach((id, queue) -> messages.addAndGet(queue.getMaxOffsetInQueue())));
        store.shutdown();
        return new JSONObject().fluentPut("seconds", (dispatched - started) / 1e9)
            .fluentPut("dispatch_seconds", (dispatched - loaded) / 1e9).fluentPut("messages", messages.get());
    }

    /** Looks now and then how many bytes dispatch is behind. */
    private static final class Lag extends Thread {
        private final DefaultMessageStore store;
        private final int milliseconds;
        private volatile boolean ending;
        private volatile long most;

        Lag(DefaultMessageStore store, int milliseconds) {
            this.store = store;
            this.milliseconds = milliseconds;
        }

        @Override
        public void run() {
            while (!ending) {
                most = Math.max(most, store.dispatchBehindBytes());
                try {
                    sleep(milliseconds);
                } catch (InterruptedException gone) {
                    return;
                }
            }
        }

        void end() throws InterruptedException {
            ending = true;
            join();
        }
    }
}
