package penstock;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** The store of RocketMQ 5: answers one JSON object a line. It opens, puts, puts batches, gets and closes. */
public final class Peer {
    private DefaultMessageStore store;

    private Peer() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        Peer peer = new Peer();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject answer;
            try {
                answer = peer.answer(JSONObject.parseObject(line));
            } catch (Throwable problem) {
                problem.printStackTrace();
                answer = new JSONObject().fluentPut("error", problem.toString());
            }
            out.println(answer.toJSONString());
            out.flush();
        }
        peer.close();
        System.exit(0);
    }

    private JSONObject answer(JSONObject ask) throws Exception {
        switch (ask.getString("do")) {
            case "open":
                return open(ask);
            case "put":
                return status(store.putMessage(message(ask.getJSONObject("message"))).getPutMessageStatus());
            case "batch":
                return status(store.putMessages(batch(ask.getJSONArray("messages"))).getPutMessageStatus());
            case "get":
                return get(ask);
            case "close":
                return close();
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
        store = new DefaultMessageStore(config, new BrokerStatsManager("peer", false),
            (topic, queue, offset, tags, time, filter, properties) -> { }, new BrokerConfig(),
            new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("load failed");
        }
        store.start();
        return new JSONObject().fluentPut("max", store.getMaxPhyOffset());
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

    private static JSONObject status(Enum<?> status) {
        return new JSONObject().fluentPut("status", status.name());
    }

    private JSONObject get(JSONObject ask) {
        GetMessageResult found = store.getMessage("peer", ask.getString("topic"), ask.getIntValue("queue"),
            ask.getLongValue("offset"), ask.getIntValue("max"), null);
        JSONArray messages = new JSONArray();
        for (ByteBuffer record : found.getMessageBufferList()) {
            MessageExt message = MessageDecoder.decode(record, true, false);
            byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
            messages.add(new JSONObject().fluentPut("physical_offset", message.getCommitLogOffset())
                .fluentPut("body", Base64.getEncoder().encodeToString(body))
                .fluentPut("properties", new TreeMap<>(message.getProperties())));
        }
        JSONObject page = new JSONObject().fluentPut("messages", messages)
            .fluentPut("next_begin_offset", found.getNextBeginOffset());
        found.release();
        return page;
    }

    private static MessageExtBrokerInner message(JSONObject json) throws Exception {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(json.getString("topic"));
        message.setQueueId(json.getIntValue("queue_id"));
        message.setFlag(json.getIntValue("flag"));
        message.setSysFlag(json.getIntValue("sys_flag"));
        message.setBody(Base64.getDecoder().decode(json.getString("body")));
        message.setBornTimestamp(json.getLongValue("born_timestamp"));
        message.setBornHost(host(json.getString("born_host")));
        message.setStoreHost(host(json.getString("store_host")));
        message.setReconsumeTimes(json.getIntValue("reconsume_times"));
        message.setPreparedTransactionOffset(json.getLongValue("prepared_transaction_offset"));
        MessageAccessor.setProperties(message, new HashMap<>());
        json.getJSONObject("properties").forEach(
            (name, value) -> MessageAccessor.putProperty(message, name, value.toString()));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    private static MessageExtBatch batch(JSONArray items) throws Exception {
        MessageExtBatch batch = new MessageExtBatch();
        List<Message> inner = new ArrayList<>();
        for (int i = 0; i < items.size(); i++) {
            MessageExtBrokerInner message = message(items.getJSONObject(i));
            batch.setTopic(message.getTopic());
            batch.setQueueId(message.getQueueId());
            batch.setBornTimestamp(message.getBornTimestamp());
            batch.setBornHost(message.getBornHost());
            batch.setStoreHost(message.getStoreHost());
            inner.add(message);
        }
        batch.setBody(MessageDecoder.encodeMessages(inner));
        return batch;
    }

    private static InetSocketAddress host(String text) throws Exception {
        int colon = text.lastIndexOf(':');
        String address = text.substring(0, colon).replace("[", "").replace("]", "");
        return new InetSocketAddress(InetAddress.getByName(address), Integer.parseInt(text.substring(colon + 1)));
    }
}
