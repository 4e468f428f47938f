package penstock;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.filter.FilterAPI;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageFilter;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageFilter;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** RocketMQ's own store behind one line of JSON in, one line of JSON out. Ends at the end of its input. */
public final class Peer {
    private DefaultMessageStore store;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Peer peer = new Peer();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Object answer;
            try {
                answer = peer.answer(JSON.parseObject(line));
            } catch (Throwable problem) {
                problem.printStackTrace();
                answer = new JSONObject().fluentPut("error", problem.toString());
            }
            out.println(JSON.toJSONString(answer));
            out.flush();
        }
        peer.close();
        System.exit(0);
    }

    private Object answer(JSONObject ask) throws Exception {
        switch (ask.getString("do")) {
            case "open":
                return open(ask);
            case "close":
                return close();
            case "put":
                return result(store.putMessage(Messages.fromJson(ask.getJSONObject("message"))));
            case "batch":
                return result(store.putMessages(Messages.batch(ask.getJSONArray("messages").toJavaList(JSONObject.class))));
            case "get":
                return get(ask);
            case "query":
                return query(ask);
            case "look":
                return look(ask);
            case "offset":
                return new JSONObject().fluentPut("offset", store.getOffsetInQueueByTime(
                    ask.getString("topic"), ask.getIntValue("queue"), ask.getLongValue("timestamp")));
            case "queues":
                return queues();
            case "bench":
                return new Bench(store).run(ask);
            case "wire":
                return Wire.answer(ask);
            default:
                throw new IllegalArgumentException("unknown: " + ask);
        }
    }

    private JSONObject open(JSONObject ask) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        Properties settings = new Properties();
        ask.getJSONObject("settings").forEach((name, value) -> settings.put(name, value.toString()));
        MixAll.properties2Object(settings, config);
        config.setStorePathRootDir(ask.getString("path"));
        config.setStorePathCommitLog(ask.getString("path") + "/commitlog");
        config.setHaListenPort(0);
        long started = System.nanoTime();
        store = new DefaultMessageStore(config, new BrokerStatsManager("peer", false),
            (topic, queue, offset, tags, time, filter, properties) -> { }, new BrokerConfig());
        if (!store.load()) {
            throw new IllegalStateException("load failed");
        }
        store.start();
        return new JSONObject().fluentPut("seconds", (System.nanoTime() - started) / 1e9)
            .fluentPut("min", store.getMinPhyOffset()).fluentPut("max", store.getMaxPhyOffset());
    }

    private JSONObject close() throws Exception {
        if (store != null) {
            while (store.dispatchBehindBytes() > 0) {
                Thread.sleep(1);
            }
            store.shutdown();
            store = null;
        }
        return new JSONObject();
    }

    private static JSONObject result(PutMessageResult put) {
        JSONObject json = new JSONObject().fluentPut("status", put.getPutMessageStatus().name());
        if (put.getAppendMessageResult() != null) {
            json.put("physical_offset", put.getAppendMessageResult().getWroteOffset());
            json.put("size", put.getAppendMessageResult().getWroteBytes());
            json.put("queue_offset", put.getAppendMessageResult().getLogicsOffset());
            json.put("msg_id", put.getAppendMessageResult().getMsgId());
        }
        return json;
    }

    private JSONObject get(JSONObject ask) throws Exception {
        String topic = ask.getString("topic");
        String tags = ask.getString("tags");
        MessageFilter filter = tags == null ? null : new DefaultMessageFilter(
            FilterAPI.buildSubscriptionData(topic, tags));
        GetMessageResult found = store.getMessage("peer", topic, ask.getIntValue("queue"),
            ask.getLongValue("offset"), ask.getIntValue("max"), filter);
        JSONArray messages = new JSONArray();
        for (ByteBuffer record : found.getMessageBufferList()) {
            messages.add(Messages.toJson(record));
        }
        JSONObject json = new JSONObject().fluentPut("status", found.getStatus().name())
            .fluentPut("next_begin_offset", found.getNextBeginOffset())
            .fluentPut("min_offset", found.getMinOffset())
            .fluentPut("max_offset", found.getMaxOffset()).fluentPut("messages", messages);
        found.release();
        return json;
    }

    private JSONArray query(JSONObject ask) {
        QueryMessageResult found = store.queryMessage(ask.getString("topic"), ask.getString("key"),
            ask.getIntValue("max"), ask.getLongValue("begin"), ask.getLongValue("end"));
        JSONArray messages = new JSONArray();
        for (ByteBuffer record : found.getMessageBufferList()) {
            messages.add(Messages.toJson(record));
        }
        found.release();
        return messages;
    }

    private Object look(JSONObject ask) {
        MessageExt found = store.lookMessageByOffset(ask.getLongValue("offset"));
        return found == null ? new JSONObject() : new JSONObject().fluentPut("topic", found.getTopic())
            .fluentPut("queue_offset", found.getQueueOffset()).fluentPut("msg_id", found.getMsgId());
    }

    private JSONArray queues() {
        JSONArray queues = new JSONArray();
        store.getConsumeQueueTable().forEach((topic, byId) -> byId.forEach((id, queue) ->
            queues.add(new JSONObject().fluentPut("topic", topic).fluentPut("queue_id", id)
                .fluentPut("min", ((ConsumeQueue) queue).getMinOffsetInQueue())
                .fluentPut("max", queue.getMaxOffsetInQueue()))));
        return queues;
    }
}
