// The Java push consumer as the benchmark times it: see consuming.py for the lines.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

public class BenchConsumer {
    private static final int THREADS = 20;
    private static volatile long began;
    private static volatile long cpu;

    public static void main(String[] args) throws Exception {
        System.out.println("@ ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.trim().split(" ");
            long handlerMs = (long) Double.parseDouble(words[2]);
            if (words[0].equals("bare")) {
                System.out.println("@ " + bare(handlerMs, Integer.parseInt(words[3]), Integer.parseInt(words[4])));
                continue;
            }
            System.out.println("@ " + run(args[0], words[1], handlerMs, Integer.parseInt(words[3]), words[4]));
        }
        System.exit(0);
    }

    private static String bare(long handlerMs, int count, int lanes) throws Exception {
        Thread[] threads = new Thread[lanes];
        long start = System.nanoTime();
        for (int lane = 0; lane < lanes; lane++) {
            threads[lane] = new Thread(() -> {
                for (int call = 0; call < count / lanes; call++) {
                    try {
                        Thread.sleep(handlerMs);
                    } catch (InterruptedException error) {
                        Thread.currentThread().interrupt();
                    }
                }
            });
            threads[lane].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return "{\"messages_per_s\": " + count / ((System.nanoTime() - start) / 1e9) + "}";
    }

    private static String run(String namesrv, String mode, long handlerMs, int count, String group)
        throws Exception {
        AtomicInteger left = new AtomicInteger(count);
        CountDownLatch done = new CountDownLatch(1);
        long[] end = new long[3];
        AtomicLong bodyBytes = new AtomicLong();
        Consumer<MessageExt> handle = message -> {
            String key = message.getKeys();
            bodyBytes.addAndGet(key == null ? 0 : message.getBody().length);
            if (handlerMs > 0) {
                try {
                    Thread.sleep(handlerMs);
                } catch (InterruptedException error) {
                    Thread.currentThread().interrupt();
                }
            }
            int now = left.decrementAndGet();
            if (now == count - 1) {
                System.out.println("@ began");
                began = System.nanoTime();
                cpu = cpuNanos();
            } else if (now == 0) {
                end[0] = System.nanoTime();
                end[1] = cpuNanos();
                end[2] = bodyBytes.get();
                done.countDown();
            }
        };
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(THREADS);
        consumer.setConsumeThreadMax(THREADS);
        consumer.subscribe("BenchOrderly", "*");
        if (mode.startsWith("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(handle);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(handle);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        done.await();
        consumer.shutdown();
        double seconds = (end[0] - began) / 1e9;
        return "{\"messages_per_s\": " + (count - 1) / seconds
            + ", \"client_cpu_us_per_message\": " + (end[1] - cpu) / 1e3 / count
            + ", \"body_bytes\": " + end[2]
            + ", \"seconds\": " + seconds + "}";
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
            ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
