package penstock;

import com.alibaba.fastjson.JSONObject;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingConnectException;

/**
 * Apache RocketMQ's client under load. Each answer, and each message that a consumer gets, is one JSON line on stdout;
 * times are System.nanoTime, which is Linux's monotonic clock. Runs until stdin ends.
 *
 * <pre>
 * produce NAMESRV TOPIC BROKER QUEUES THREADS SEED PAUSE_MS
 * consume NAMESRV TOPIC GROUP ...     a group whose name ends with "orderly" is consumed in order
 * </pre>
 *
 * A body is its token and a space, repeated up to a size. Each token is sent once, without retries.
 */
public final class Load {
    private static final PrintStream LINES = System.out;
    private static final int[] SIZES = {16, 300, 3000};
    private static final double BATCHES = 0.1;
    private static final int TIMEOUT_MS = 1000;
    private static final int REFRESH_MS = 1000;
    private static volatile boolean ends;

    private Load() {
    }

    public static void main(String[] words) throws Exception {
        System.setOut(System.err);
        List<String> rest = Arrays.asList(words).subList(3, words.length);
        if ("produce".equals(words[0])) {
            produce(words[1], words[2], rest);
        } else {
            consume(words[1], words[2], rest);
        }
        System.exit(0);
    }

    private static void waitForEnd() throws Exception {
        while (System.in.read() >= 0) {
            continue;
        }
    }

    private static void print(JSONObject line) {
        synchronized (LINES) {
            LINES.println(line.toJSONString());
            LINES.flush();
        }
    }

    // -- producing -----------------------------------------------------------------------------------------------

    private static void produce(String namesrv, String topic, List<String> rest) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("PID_java");
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("producers");
        producer.setPollNameServerInterval(REFRESH_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        int queues = Integer.parseInt(rest.get(1));
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(rest.get(2)); number++) {
            String name = "j" + number;
            Random chance = new Random(Long.parseLong(rest.get(3)) * 31 + number);
            long pauseMs = Long.parseLong(rest.get(4));
            Thread thread = new Thread(() -> send(producer, name, topic, rest.get(0), queues, chance, pauseMs), name);
            thread.start();
            threads.add(thread);
        }
        waitForEnd();
        ends = true;
        for (Thread thread : threads) {
            thread.join();
        }
        producer.shutdown();
    }

    private static void send(
        DefaultMQProducer producer, String name, String topic, String broker, int queues, Random chance, long pauseMs) {
        int number = 0;
        while (!ends) {
            int count = chance.nextDouble() < BATCHES ? 2 + chance.nextInt(4) : 1;
            MessageQueue queue = new MessageQueue(topic, broker, chance.nextInt(queues));
            int size = SIZES[chance.nextInt(SIZES.length)];
            List<Message> messages = new ArrayList<>();
            for (int at = number; at < number + count; at++) {
                messages.add(new Message(topic, "", name + "-" + at, body(name + "-" + at, size)));
            }
            JSONObject line = new JSONObject().fluentPut("producer", name).fluentPut("number", number)
                .fluentPut("count", count).fluentPut("queue", queue.getQueueId()).fluentPut("began", System.nanoTime());
            boolean isStored = false;
            try {
                SendResult sent = count == 1 ? producer.send(messages.get(0), queue, TIMEOUT_MS)
                    : producer.send(messages, queue, TIMEOUT_MS);
                line.fluentPut("status", sent.getSendStatus().name()).fluentPut("offset", sent.getQueueOffset())
                    .fluentPut("ids", sent.getOffsetMsgId());
                isStored = true;
            } catch (MQBrokerException | MQClientException | RemotingConnectException error) {
                line.fluentPut("refused", error.toString());
            } catch (Exception error) {
                line.fluentPut("unknown", error.toString());
            }
            print(line.fluentPut("ended", System.nanoTime()));
            number += count;
            pause(isStored ? pauseMs : 20);
        }
    }

    private static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            ends = true;
        }
    }

    private static byte[] body(String token, int size) {
        byte[] word = (token + " ").getBytes(StandardCharsets.UTF_8);
        byte[] made = new byte[Math.max(size, word.length)];
        for (int at = 0; at < made.length; at++) {
            made[at] = word[at % word.length];
        }
        return made;
    }

    // -- consuming -----------------------------------------------------------------------------------------------

    private static void consume(String namesrv, String topic, List<String> groups) throws Exception {
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (String group : groups) {
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
            consumer.setNamesrvAddr(namesrv);
            consumer.setInstanceName("consumers");
            consumer.setPollNameServerInterval(REFRESH_MS);
            consumer.setHeartbeatBrokerInterval(REFRESH_MS);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(topic, "*");
            if (group.endsWith("orderly")) {
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                    note(group, messages);
                    return ConsumeOrderlyStatus.SUCCESS;
                });
            } else {
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    note(group, messages);
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
            }
            consumer.start();
            consumers.add(consumer);
        }
        waitForEnd();
        consumers.forEach(DefaultMQPushConsumer::shutdown);
    }

    private static void note(String group, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            print(new JSONObject().fluentPut("group", group).fluentPut("queue", message.getQueueId())
                .fluentPut("offset", message.getQueueOffset()).fluentPut("token", token(message.getBody()))
                .fluentPut("at", System.nanoTime()));
        }
    }

    /** Returns the token of a body; with a remark if the body is not what was made of it. */
    private static String token(byte[] body) {
        String token = new String(body, StandardCharsets.UTF_8).split(" ", 2)[0];
        return Arrays.equals(body, body(token, body.length)) ? token : token + " (damaged)";
    }
}
