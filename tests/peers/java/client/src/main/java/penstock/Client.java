package penstock;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Apache RocketMQ's client, told what to do by one JSON object per line; each is answered by one line. */
public final class Client {
    private static final PrintStream ANSWERS = System.out;
    private final String namesrv;
    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private final Map<String, DefaultMQPushConsumer> consumers = new HashMap<>();
    private final Map<String, Queue<JSONObject>> consumed = new ConcurrentHashMap<>();

    private Client(String namesrv) {
        this.namesrv = namesrv;
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        Client client = new Client(arguments[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = lines.readLine()) != null) {
            Object answer;
            try {
                answer = client.run(JSON.parseObject(line));
            } catch (Throwable error) {
                answer = new JSONObject().fluentPut("error", String.valueOf(error));
            }
            ANSWERS.println(JSON.toJSONString(answer));
            ANSWERS.flush();
        }
        client.consumers.values().forEach(DefaultMQPushConsumer::shutdown);
        client.producers.values().forEach(DefaultMQProducer::shutdown);
        System.exit(0);
    }

    private Object run(JSONObject ask) throws Exception {
        switch (ask.getString("do")) {
            case "send":
                return send(ask);
            case "transaction":
                return transaction(ask);
            case "consume":
                return consume(ask);
            case "consumed":
                return new JSONArray(new ArrayList<>(consumed.get(ask.getString("name"))));
            case "stop":
                consumers.remove(ask.getString("name")).shutdown();
                return new JSONObject();
            case "pull":
                return pull(ask);
            case "query":
                return query(ask);
            case "mqadmin":
                return mqadmin(ask);
            default:
                throw new IllegalArgumentException("unknown: " + ask);
        }
    }

    // -- producing -----------------------------------------------------------------------------------------------

    private DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer found = producers.get(group);
        if (found == null) {
            found = new DefaultMQProducer(group);
            found.setNamesrvAddr(namesrv);
            found.setInstanceName("producer-" + group);
            found.setSendMsgTimeout(5000);
            found.setRetryTimesWhenSendFailed(4);
            found.start();
            producers.put(group, found);
        }
        return found;
    }

    private static Message message(JSONObject json) {
        Message message = new Message(json.getString("topic"), json.getString("tags"), json.getString("keys"),
            Base64.getDecoder().decode(json.getString("body")));
        if (json.containsKey("delay")) {
            message.setDelayTimeLevel(json.getIntValue("delay"));
        }
        if (json.containsKey("properties")) {
            json.getJSONObject("properties").forEach((name, value) -> message.putUserProperty(name, value.toString()));
        }
        return message;
    }

    private Object send(JSONObject ask) throws Exception {
        DefaultMQProducer producer = producer(ask.getString("group"));
        List<Message> messages = new ArrayList<>();
        ask.getJSONArray("messages").forEach(json -> messages.add(message((JSONObject) json)));
        JSONArray answers = new JSONArray();
        String how = ask.getString("how");
        if ("batch".equals(how)) {
            answers.add(result(producer.send(messages)));
        } else if ("async".equals(how)) {
            CountDownLatch done = new CountDownLatch(messages.size());
            Queue<JSONObject> results = new ConcurrentLinkedQueue<>();
            for (Message message : messages) {
                producer.send(message, new SendCallback() {
                    @Override
                    public void onSuccess(SendResult sent) {
                        results.add(result(sent));
                        done.countDown();
                    }

                    @Override
                    public void onException(Throwable error) {
                        results.add(new JSONObject().fluentPut("error", error.toString()));
                        done.countDown();
                    }
                });
            }
            done.await(30, TimeUnit.SECONDS);
            answers.addAll(results);
        } else {
            for (Message message : messages) {
                if ("oneway".equals(how)) {
                    producer.sendOneway(message);
                } else if ("orderly".equals(how)) {
                    answers.add(result(producer.send(message, (queues, sent, key) ->
                        queues.get(Math.floorMod(key.hashCode(), queues.size())), message.getKeys())));
                } else {
                    answers.add(result(producer.send(message)));
                }
            }
        }
        return answers;
    }

    private static JSONObject result(SendResult sent) {
        return new JSONObject().fluentPut("status", sent.getSendStatus().name()).fluentPut("msg_id", sent.getMsgId())
            .fluentPut("offset_msg_id", sent.getOffsetMsgId()).fluentPut("queue_offset", sent.getQueueOffset())
            .fluentPut("queue_id", sent.getMessageQueue().getQueueId());
    }

    /** Sends transactional messages; what the body ends with says how: commit, rollback, or unknown and then either. */
    private Object transaction(JSONObject ask) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(ask.getString("group"));
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("transactions");
        AtomicInteger checks = new AtomicInteger();
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object unused) {
                return state(message, false);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checks.incrementAndGet();
                return state(message, true);
            }

            private LocalTransactionState state(Message message, boolean asked) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                if (body.contains("unknown") && !asked) {
                    return LocalTransactionState.UNKNOW;
                }
                return body.endsWith("commit") ? LocalTransactionState.COMMIT_MESSAGE
                    : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        producer.start();
        for (Object json : ask.getJSONArray("messages")) {
            producer.sendMessageInTransaction(message((JSONObject) json), null);
        }
        long deadline = System.currentTimeMillis() + ask.getLongValue("wait_ms");
        while (checks.get() < ask.getIntValue("checks") && System.currentTimeMillis() < deadline) {
            Thread.sleep(50);
        }
        Thread.sleep(300);
        producer.shutdown();
        return new JSONObject().fluentPut("checks", checks.get());
    }

    // -- consuming -----------------------------------------------------------------------------------------------

    private Object consume(JSONObject ask) throws Exception {
        String name = ask.getString("name");
        Queue<JSONObject> seen = consumed.computeIfAbsent(name, unused -> new ConcurrentLinkedQueue<>());
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(ask.getString("group"));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (ask.getBooleanValue("broadcast")) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        if (ask.containsKey("max_reconsume_times")) {
            consumer.setMaxReconsumeTimes(ask.getIntValue("max_reconsume_times"));
        }
        if (ask.containsKey("sql")) {
            consumer.subscribe(ask.getString("topic"), MessageSelector.bySql(ask.getString("sql")));
        } else {
            consumer.subscribe(ask.getString("topic"), ask.getOrDefault("tags", "*").toString());
        }
        String fails = ask.getString("fails");
        if (ask.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(message -> seen.add(json(message)));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> seen.add(json(message)));
                boolean failed = fails != null && messages.stream().anyMatch(message ->
                    new String(message.getBody(), StandardCharsets.UTF_8).startsWith(fails));
                context.setDelayLevelWhenNextConsume(ask.getIntValue("delay_level"));
                return failed ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        consumers.put(name, consumer);
        return new JSONObject();
    }

    private Object pull(JSONObject ask) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(ask.getString("group"));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("pull");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(ask.getString("topic"), "*");
        consumer.start();
        JSONArray found = new JSONArray();
        long deadline = System.currentTimeMillis() + 20_000;
        while (found.size() < ask.getIntValue("count") && System.currentTimeMillis() < deadline) {
            consumer.poll(1000).forEach(message -> found.add(json(message)));
        }
        consumer.commitSync();
        consumer.shutdown();
        return found;
    }

    private Object query(JSONObject ask) throws Exception {
        DefaultMQProducer producer = producer(ask.getString("group"));
        JSONArray found = new JSONArray();
        if (ask.containsKey("key")) {
            producer.queryMessage(ask.getString("topic"), ask.getString("key"), 32, 0, Long.MAX_VALUE)
                .getMessageList().forEach(message -> found.add(json(message)));
        } else {
            found.add(json(producer.viewMessage(ask.getString("topic"), ask.getString("id"))));
        }
        return found;
    }

    private static JSONObject json(MessageExt message) {
        return new JSONObject().fluentPut("topic", message.getTopic()).fluentPut("queue_id", message.getQueueId())
            .fluentPut("queue_offset", message.getQueueOffset()).fluentPut("tags", message.getTags())
            .fluentPut("keys", message.getKeys()).fluentPut("msg_id", message.getMsgId())
            .fluentPut("body", Base64.getEncoder().encodeToString(message.getBody()))
            .fluentPut("reconsume_times", message.getReconsumeTimes()).fluentPut("at", System.currentTimeMillis())
            .fluentPut("properties", message.getProperties());
    }

    // -- administration ------------------------------------------------------------------------------------------

    private Object mqadmin(JSONObject ask) {
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        PrintStream before = System.out;
        System.setOut(new PrintStream(said, true));
        try {
            MQAdminStartup.main0(ask.getJSONArray("arguments").toArray(new String[0]), null);
        } finally {
            System.setOut(before);
        }
        return new JSONObject().fluentPut("said", said.toString());
    }
}
