import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.consumer.store.OffsetSerializeWrapper;
import org.apache.rocketmq.common.message.MessageQueue;

/** Writes what Apache RocketMQ's client says: allocations.json and offsets.json. See README.md. */
public class ConsumingTables {
    private static final StringBuilder OUT = new StringBuilder("[\n");

    public static void main(String[] args) throws Exception {
        Path folder = Path.of(args[0]);
        List<List<String>> brokers = Arrays.asList(
            Arrays.asList("broker-a"),
            Arrays.asList("broker-a", "broker-b"),
            Arrays.asList("east@a", "west@b", "east@c@d", "north@", "plain"),
            Arrays.asList("\uD83D\uDE00@x", "\uFF5E@y"));
        List<List<String>> groups = Arrays.asList(
            Arrays.asList("C0"),
            Arrays.asList("C0", "C1", "C2"),
            Arrays.asList("east-1", "east-2", "west-1"),
            Arrays.asList("10.0.0.1@7#1", "10.0.0.1@71#1", "10.0.0.2@7#1", "192.168.7.9@DEFAULT", "\uD83D\uDE00", "\uFF5E"),
            Arrays.asList("C0", "C1", "C10", "C11", "C2", "C3", "C4", "C5", "C6", "C7"),
            Arrays.asList("C0", "C0", "C1"));
        for (List<String> names : brokers) {
            for (int perBroker : new int[] {1, 2, 3, 4, 7, 8}) {
                List<MessageQueue> queues = new ArrayList<>();
                for (String name : names) {
                    for (int id = 0; id < perBroker; id++) {
                        queues.add(new MessageQueue("订单-orders", name, id));
                    }
                }
                Collections.sort(queues);
                for (List<String> ids : groups) {
                    List<String> sorted = new ArrayList<>(ids);
                    Collections.sort(sorted);
                    for (AllocateMessageQueueStrategy strategy : strategies(queues)) {
                        write(strategy, queues, sorted);
                    }
                }
            }
        }
        OUT.setLength(OUT.length() - 2);
        Files.write(folder.resolve("allocations.json"), OUT.append("\n]\n").toString().getBytes(StandardCharsets.UTF_8));

        OffsetSerializeWrapper wrapper = new OffsetSerializeWrapper();
        wrapper.getOffsetTable().put(new MessageQueue("订单-orders", "broker-a", 0), new AtomicLong(12));
        Files.write(folder.resolve("offsets-one.json"), wrapper.toJson(true).getBytes(StandardCharsets.UTF_8));
        wrapper.getOffsetTable().put(new MessageQueue("%RETRY%g", "broker \"b\"", 3), new AtomicLong(0));
        wrapper.getOffsetTable().put(new MessageQueue("T", "broker-a", 10), new AtomicLong(Long.MAX_VALUE));
        Files.write(folder.resolve("offsets-three.json"), wrapper.toJson(true).getBytes(StandardCharsets.UTF_8));
        Files.write(folder.resolve("offsets-none.json"), new OffsetSerializeWrapper().toJson(true).getBytes(StandardCharsets.UTF_8));
        // The other way round: argument 2 is a file that inorder wrote.
        if (args.length > 1) {
            String text = Files.readString(Path.of(args[1]));
            System.out.println(OffsetSerializeWrapper.fromJson(text, OffsetSerializeWrapper.class).getOffsetTable());
        }
    }

    private static List<AllocateMessageQueueStrategy> strategies(List<MessageQueue> queues) {
        AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
        config.setMessageQueueList(queues.subList(0, (queues.size() + 1) / 2));
        AllocateMessageQueueByMachineRoom room = new AllocateMessageQueueByMachineRoom();
        room.setConsumeridcs(new HashSet<>(Arrays.asList("east", "west")));
        return Arrays.asList(
            new AllocateMessageQueueAveragely(),
            new AllocateMessageQueueAveragelyByCircle(),
            new AllocateMessageQueueConsistentHash(),
            config,
            room,
            new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), new Rooms()),
            new AllocateMachineRoomNearby(new AllocateMessageQueueAveragelyByCircle(), new Rooms()));
    }

    /** The room is what stands before the first @ or -. */
    private static class Rooms implements AllocateMachineRoomNearby.MachineRoomResolver {
        public String brokerDeployIn(MessageQueue queue) {
            return queue.getBrokerName().split("[@-]")[0];
        }

        public String consumerDeployIn(String id) {
            return id.split("[@-]")[0];
        }
    }

    private static void write(AllocateMessageQueueStrategy strategy, List<MessageQueue> queues, List<String> ids) {
        List<String> asked = new ArrayList<>(new java.util.TreeSet<>(ids));
        asked.add("stranger");
        OUT.append("{\"strategy\":\"").append(strategy.getName()).append("\",\"queues\":[");
        for (MessageQueue queue : queues) {
            OUT.append("[\"").append(queue.getBrokerName()).append("\",").append(queue.getQueueId()).append("],");
        }
        OUT.setLength(OUT.length() - 1);
        OUT.append("],\"ids\":[\"").append(String.join("\",\"", ids)).append("\"],\"expected\":{");
        for (String id : asked) {
            OUT.append("\"").append(id).append("\":[");
            List<MessageQueue> found = strategy.allocate("g", id, queues, ids);
            for (MessageQueue queue : found) {
                OUT.append(queues.indexOf(queue)).append(",");
            }
            if (!found.isEmpty()) {
                OUT.setLength(OUT.length() - 1);
            }
            OUT.append("],");
        }
        OUT.setLength(OUT.length() - 1);
        OUT.append("}},\n");
    }
}
