package penstock;

import com.alibaba.fastjson.JSONObject;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.MessageExtBrokerInner;

/** Between the JSON of the tests and RocketMQ's message classes. Field names are those of `penstock store dump`. */
final class Messages {
    private Messages() {
    }

    static MessageExtBrokerInner fromJson(JSONObject json) throws Exception {
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
        for (Map.Entry<String, Object> entry : json.getJSONObject("properties").entrySet()) {
            MessageAccessor.putProperty(message, entry.getKey(), entry.getValue().toString());
        }
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    /** A batch as a broker hands it to the store: what all share, and the inner messages encoded in the body. */
    static MessageExtBatch batch(Iterable<JSONObject> items) throws Exception {
        MessageExtBatch batch = new MessageExtBatch();
        java.util.List<Message> inner = new java.util.ArrayList<>();
        for (JSONObject json : items) {
            MessageExtBrokerInner message = fromJson(json);
            batch.setTopic(message.getTopic());
            batch.setQueueId(message.getQueueId());
            batch.setSysFlag(message.getSysFlag());
            batch.setBornTimestamp(message.getBornTimestamp());
            batch.setBornHost(message.getBornHost());
            batch.setStoreHost(message.getStoreHost());
            inner.add(message);
        }
        batch.setBody(MessageDecoder.encodeMessages(inner));
        return batch;
    }

    static JSONObject toJson(ByteBuffer record) {
        MessageExt message = MessageDecoder.decode(record, true, false);
        JSONObject json = new JSONObject(true);
        json.put("topic", message.getTopic());
        json.put("queue_id", message.getQueueId());
        json.put("queue_offset", message.getQueueOffset());
        json.put("physical_offset", message.getCommitLogOffset());
        json.put("size", message.getStoreSize());
        json.put("flag", message.getFlag());
        json.put("sys_flag", message.getSysFlag());
        json.put("born_timestamp", message.getBornTimestamp());
        json.put("born_host", text(message.getBornHost()));
        json.put("store_timestamp", message.getStoreTimestamp());
        json.put("store_host", text(message.getStoreHost()));
        json.put("reconsume_times", message.getReconsumeTimes());
        json.put("prepared_transaction_offset", message.getPreparedTransactionOffset());
        Map<String, String> properties = message.getProperties();
        json.put("properties", properties == null ? new TreeMap<>() : new TreeMap<>(properties));
        byte[] body = message.getBody();
        json.put("body", Base64.getEncoder().encodeToString(body == null ? new byte[0] : body));
        json.put("body_crc", message.getBodyCRC());
        json.put("msg_id", message.getMsgId());
        return json;
    }

    private static SocketAddress host(String text) throws Exception {
        int colon = text.lastIndexOf(':');
        String address = text.substring(0, colon).replace("[", "").replace("]", "");
        return new InetSocketAddress(InetAddress.getByName(address), Integer.parseInt(text.substring(colon + 1)));
    }

    private static String text(SocketAddress host) {
        InetSocketAddress address = (InetSocketAddress) host;
        String ip = address.getAddress().getHostAddress();
        return (ip.indexOf(':') < 0 ? ip : "[" + ip + "]") + ":" + address.getPort();
    }
}
