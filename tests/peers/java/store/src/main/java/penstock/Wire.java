package penstock;

import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.HashMap;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.protocol.body.RegisterBrokerBody;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** RocketMQ's own wire protocol: reads what it is given and says it again in its own words. */
final class Wire {
    private static final String COMMON = "org.apache.rocketmq.common.";

    private Wire() {
    }

    static JSONObject answer(JSONObject ask) throws Exception {
        byte[] data = ask.containsKey("data") ? Base64.getDecoder().decode(ask.getString("data")) : null;
        switch (ask.getString("what")) {
            case "frame":
                return frame(data);
            case "header":
                return header(ask);
            case "body":
                return bytes(RemotingSerializable.encode(RemotingSerializable.decode(data, type(ask))));
            case "register":
                boolean compressed = ask.getBooleanValue("compressed");
                return bytes(RegisterBrokerBody.decode(data, compressed).encode(ask.getBooleanValue("compress")));
            case "compress":
                CompressionType codec = CompressionType.valueOf(ask.getString("codec"));
                return bytes(CompressorFactory.getCompressor(codec).compress(data, 5));
            default:
                throw new IllegalArgumentException("unknown: " + ask);
        }
    }

    private static JSONObject frame(byte[] data) throws Exception {
        ByteBuffer buffer = ByteBuffer.wrap(data);
        if (buffer.getInt() != buffer.remaining()) {
            throw new IllegalArgumentException("the length does not fit");
        }
        RemotingCommand command = RemotingCommand.decode(buffer);
        return bytes(command.encode().array()).fluentPut("code", command.getCode())
            .fluentPut("language", command.getLanguage()).fluentPut("version", command.getVersion())
            .fluentPut("opaque", command.getOpaque()).fluentPut("flag", command.getFlag())
            .fluentPut("remark", command.getRemark()).fluentPut("ext", command.getExtFields())
            .fluentPut("body", command.getBody() == null ? "" : Base64.getEncoder().encodeToString(command.getBody()));
    }

    private static JSONObject header(JSONObject ask) throws Exception {
        RemotingCommand given = RemotingCommand.createRequestCommand(0, null);
        given.setExtFields(new HashMap<>());
        ask.getJSONObject("ext").forEach((name, value) -> given.addExtField(name, value.toString()));
        CommandCustomHeader header = given.decodeCommandCustomHeader(type(ask).asSubclass(CommandCustomHeader.class));
        RemotingCommand taken = RemotingCommand.createRequestCommand(0, header);
        taken.makeCustomHeaderToNet();
        return new JSONObject().fluentPut("ext", taken.getExtFields() == null ? new HashMap<>() : taken.getExtFields());
    }

    private static Class<?> type(JSONObject ask) throws ClassNotFoundException {
        return Class.forName(COMMON + ask.getString("type"));
    }

    private static JSONObject bytes(byte[] data) {
        return new JSONObject().fluentPut("data", Base64.getEncoder().encodeToString(data));
    }
}
