// Drives the Java client by lines on standard input; see ../README.md for the lines.

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

public class StockClient {
    private static final PrintStream OUT = System.out;
    /** A client waits 3 s for its first route. On a busy machine a new TLS connection takes as long. */
    private static final int API_TIMEOUT_MS = 20_000;
    private static final Map<String, DefaultMQPushConsumer> CONSUMERS = new HashMap<>();
    private static String namesrv;
    /** By their credentials: clients of one instance share connections, and so what they sign with. */
    private static final Map<String, DefaultMQProducer> PRODUCERS = new HashMap<>();

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        say("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.trim().split(" ");
            Map<String, String> options = new HashMap<>();
            for (int i = 1; i < words.length; i++) {
                int at = words[i].indexOf('=');
                options.put(words[i].substring(0, at), words[i].substring(at + 1));
            }
            try {
                run(words[0], options);
                say("done verb=" + words[0]);
            } catch (Throwable error) {
                error.printStackTrace();
                say("failed verb=" + words[0] + " reason=" + encode(String.valueOf(error)));
            }
        }
        System.exit(0);
    }

    private static void run(String verb, Map<String, String> options) throws Exception {
        switch (verb) {
            case "produce": produce(options); break;
            case "transact": transact(options); break;
            case "push": push(options); break;
            case "request": request(options); break;
            case "stop": CONSUMERS.remove(options.get("name")).shutdown(); break;
            case "pull": pull(options); break;
            case "litepull": litePull(options); break;
            case "query":
                long now = System.currentTimeMillis();
                for (MessageExt message : producer(options)
                        .queryMessage(options.get("topic"), options.get("key"), 32, 0, now + 60_000)
                        .getMessageList()) {
                    say("found " + where(message));
                }
                break;
            case "view":
                say("found " + where(producer(options).viewMessage(options.get("topic"), options.get("id"))));
                break;
            case "admin": say("output text=" + encode(admin(options.get("args").split(",")))); break;
            default: throw new IllegalArgumentException("unknown verb " + verb);
        }
    }

    private static RPCHook hook(Map<String, String> options) {
        if (!options.containsKey("user")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(options.get("user"), options.get("secret")));
    }

    /** What tells clients with other credentials apart, in their names. */
    private static String mark(Map<String, String> options) {
        return options.containsKey("user") ? "_" + options.get("user") + "_" + options.get("secret") : "";
    }

    private static DefaultMQProducer producer(Map<String, String> options) throws Exception {
        DefaultMQProducer producer = PRODUCERS.get(mark(options));
        if (producer == null) {
            DefaultMQProducer made =
                new DefaultMQProducer("stock_producer" + mark(options), hook(options));
            made.setNamesrvAddr(namesrv);
            made.setInstanceName("producer" + mark(options));
            made.setMqClientApiTimeout(API_TIMEOUT_MS);
            made.setSendMsgTimeout(10_000);
            made.start();
            PRODUCERS.put(mark(options), made);
            producer = made;
        }
        return producer;
    }

    private static void produce(Map<String, String> options) throws Exception {
        int first = Integer.parseInt(options.get("first"));
        int count = Integer.parseInt(options.get("count"));
        String[] tags = options.get("tags").split(",");
        for (int number = first; number < first + count; number++) {
            byte[] body = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
            Message message =
                new Message(options.get("topic"), tags[number % tags.length], "key-" + number, body);
            int level = Integer.parseInt(options.getOrDefault("delay", "0"));
            if (level > 0) {
                message.setDelayTimeLevel(level);
            }
            long began = nowMicros();
            SendResult result = producer(options).send(
                message, (queues, sent, chosen) -> queues.get((Integer) chosen % queues.size()), number);
            say("sent name=" + options.get("topic") + " number=" + number + " queue=" + result.getMessageQueue().getQueueId()
                + " offset=" + result.getQueueOffset() + " id=" + result.getOffsetMsgId()
                + " unique=" + result.getMsgId() + " begin=" + began);
        }
    }

    private static void transact(Map<String, String> options) throws Exception {
        TransactionMQProducer made = new TransactionMQProducer(options.get("group"), hook(options));
        made.setNamesrvAddr(namesrv);
        made.setInstanceName("transactions" + mark(options));
        made.setMqClientApiTimeout(API_TIMEOUT_MS);
        made.setSendMsgTimeout(10_000);
        made.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object number) {
                switch ((Integer) number % 4) {
                    case 0: return LocalTransactionState.COMMIT_MESSAGE;
                    case 1: return LocalTransactionState.ROLLBACK_MESSAGE;
                    default: return LocalTransactionState.UNKNOW;
                }
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                int number = Integer.parseInt(new String(message.getBody(), StandardCharsets.UTF_8));
                return number % 2 == 0
                    ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        made.start();
        int first = Integer.parseInt(options.get("first"));
        int count = Integer.parseInt(options.get("count"));
        for (int number = first; number < first + count; number++) {
            byte[] body = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(options.get("topic"), "A", "key-" + number, body);
            made.sendMessageInTransaction(message, number);
        }
    }

    /** By the callback form: in 5.3.3 the blocking one times out when the send is acknowledged. */
    private static void request(Map<String, String> options) throws Exception {
        int first = Integer.parseInt(options.get("first"));
        int count = Integer.parseInt(options.get("count"));
        long timeout = Long.parseLong(options.getOrDefault("timeout", "20000"));
        CountDownLatch left = new CountDownLatch(count);
        for (int number = first; number < first + count; number++) {
            byte[] body = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
            int asked = number;
            producer(options).request(new Message(options.get("topic"), "A", "key-" + number, body), new RequestCallback() {
                @Override
                public void onSuccess(Message reply) {
                    say("replied number=" + asked + " body="
                        + new String(reply.getBody(), StandardCharsets.UTF_8));
                    left.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    say("unreplied number=" + asked + " reason=" + encode(String.valueOf(error)));
                    left.countDown();
                }
            }, timeout);
        }
        left.await(timeout + 10_000, TimeUnit.MILLISECONDS);
    }

    private static void push(Map<String, String> options) throws Exception {
        String name = options.get("name");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            options.get("group"), hook(options), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (options.containsKey("sql")) {
            byte[] sql = Base64.getUrlDecoder().decode(options.get("sql"));
            consumer.subscribe(options.get("topic"),
                MessageSelector.bySql(new String(sql, StandardCharsets.UTF_8)));
        } else {
            consumer.subscribe(options.get("topic"), options.get("tags").replace(",", "||"));
        }
        Work work = new Work(name, options);
        if (options.containsKey("pop")) {
            // By name: the class has these since 5.
            Class<?> type = consumer.getClass();
            type.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            type.getMethod("setPopInvisibleTime", long.class)
                .invoke(consumer, Long.parseLong(options.get("pop")));
        }
        if (options.containsKey("tries")) {
            consumer.setMaxReconsumeTimes(Integer.parseInt(options.get("tries")));
        }
        if (options.get("mode").equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                messages.stream().allMatch(work::handle)
                    ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            if (options.get("mode").equals("broadcast")) {
                // By its name: the class moved between packages from 4.9 to 5.
                Class<?> model = consumer.getMessageModel().getClass();
                Object wanted = model.getField("BROADCASTING").get(null);
                consumer.getClass().getMethod("setMessageModel", model).invoke(consumer, wanted);
            }
            consumer.setConsumeThreadMin(1);
            consumer.setConsumeThreadMax(1);
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                messages.stream().allMatch(work::handle)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        CONSUMERS.put(name, consumer);
    }

    /** A handler: so many milliseconds of work, and some numbers refused so many times. */
    private static final class Work {
        private final String name;
        private final long millis;
        private final boolean replies;
        private final Map<String, String> options;
        private final Map<String, Integer> refusals = new ConcurrentHashMap<>();

        Work(String name, Map<String, String> options) {
            this.name = name;
            this.options = options;
            millis = Long.parseLong(options.getOrDefault("work", "0"));
            replies = options.containsKey("reply");
            if (options.containsKey("refuse")) {
                for (String one : options.get("refuse").split(",")) {
                    refusals.put(one.split(":")[0], Integer.parseInt(one.split(":")[1]));
                }
            }
        }

        boolean handle(MessageExt message) {
            long began = nowMicros();
            String what = "name=" + name + " " + where(message) + " tag=" + message.getTags()
                + " topic=" + message.getTopic() + " tries=" + message.getReconsumeTimes()
                + " begin=" + began;
            say("begun " + what);
            try {
                Thread.sleep(millis);
            } catch (InterruptedException stopped) {
                return false;
            }
            String number = new String(message.getBody(), StandardCharsets.UTF_8);
            boolean refused = refusals.merge(number, -1, Integer::sum) >= 0;
            if (replies && !refused) {
                byte[] body = ("re-" + number).getBytes(StandardCharsets.UTF_8);
                try {
                    producer(options).send(MessageUtil.createReplyMessage(message, body), 10_000);
                } catch (Exception error) {
                    say("unanswered number=" + number + " reason=" + encode(String.valueOf(error)));
                }
            }
            long ended = nowMicros();
            say((refused ? "refused " : "got ") + what + " end=" + ended + " at=" + ended / 1000);
            return !refused;
        }
    }

    private static long nowMicros() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1000;
    }

    @SuppressWarnings("deprecation")
    private static void pull(Map<String, String> options) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.get("group"), hook(options));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("puller" + mark(options));
        consumer.setMqClientApiTimeout(API_TIMEOUT_MS);
        consumer.start();
        try {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(options.get("topic"))) {
                long offset = consumer.minOffset(queue);
                long end = consumer.maxOffset(queue);
                while (offset < end) {
                    PullResult result = consumer.pull(queue, "*", offset, 32);
                    if (result.getPullStatus() != PullStatus.FOUND) {
                        throw new IllegalStateException(queue + " at " + offset + ": " + result);
                    }
                    result.getMsgFoundList().forEach(message -> say("pulled " + where(message)));
                    offset = result.getNextBeginOffset();
                    consumer.updateConsumeOffset(queue, offset);
                }
            }
        } finally {
            consumer.shutdown();
        }
    }

    private static void litePull(Map<String, String> options) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.get("group"));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("lite");
        consumer.setMqClientApiTimeout(API_TIMEOUT_MS);
        // Not by seek: it interrupts the pull thread, and an interrupted call closes the connection.
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.start();
        try {
            List<MessageQueue> queues =
                new ArrayList<>(consumer.fetchMessageQueues(options.get("topic")));
            consumer.assign(queues);
            int left = Integer.parseInt(options.get("count"));
            for (long until = System.currentTimeMillis() + 15_000; left > 0; ) {
                List<MessageExt> messages = consumer.poll(1000);
                messages.forEach(message -> say("pulled " + where(message)));
                left -= messages.size();
                if (System.currentTimeMillis() > until) {
                    throw new IllegalStateException(left + " messages did not come");
                }
            }
            consumer.commitSync();
        } finally {
            consumer.shutdown();
        }
    }

    /** Runs mqadmin inside this JVM: it costs a second less per command than a JVM of its own. */
    private static String admin(String[] arguments) throws Exception {
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        PrintStream before = System.out;
        System.setOut(new PrintStream(text, true));
        try {
            Class<?> main = Class.forName("org.apache.rocketmq.tools.command.MQAdminStartup");
            main.getMethod("main", String[].class).invoke(null, (Object) arguments);
        } finally {
            System.setOut(before);
        }
        return text.toString();
    }

    private static String where(MessageExt message) {
        return "number=" + new String(message.getBody(), StandardCharsets.UTF_8)
            + " queue=" + message.getQueueId() + " offset=" + message.getQueueOffset();
    }

    private static String encode(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    private static synchronized void say(String line) {
        OUT.println("@ " + line);
        OUT.flush();
    }
}
