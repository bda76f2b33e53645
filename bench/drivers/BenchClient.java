// The Java client as the benchmark times it: see __init__.py for the lines it is told and answers.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

public class BenchClient {
    private static final String TOPIC = "BenchClients";
    private static final byte[] BODY = new byte[200];

    public static void main(String[] args) throws Exception {
        Arrays.fill(BODY, (byte) 'x');
        DefaultMQProducer producer = new DefaultMQProducer("bench_java");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        producer.send(message());
        System.out.println("@ ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.trim().split(" ");
            double seconds = Double.parseDouble(words[3]);
            String measured = words[1].equals("async")
                ? flood(producer, Integer.parseInt(words[2]), seconds)
                : oneByOne(producer, seconds);
            System.out.println("@ " + measured);
        }
        System.exit(0);
    }

    private static Message message() {
        return new Message(TOPIC, "TagA", "order-4711", BODY);
    }

    private static String flood(DefaultMQProducer producer, int window, double seconds)
        throws Exception {
        Semaphore free = new Semaphore(window);
        AtomicLong failed = new AtomicLong();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                free.release();
            }

            @Override
            public void onException(Throwable error) {
                failed.incrementAndGet();
                free.release();
            }
        };
        long sent = 0;
        long cpu = cpuNanos();
        long began = System.nanoTime();
        long until = began + (long) (seconds * 1e9);
        while (System.nanoTime() < until) {
            free.acquire();
            producer.send(message(), callback);
            sent++;
        }
        free.acquire(window);
        double took = (System.nanoTime() - began) / 1e9;
        return numbers(sent, took, (cpuNanos() - cpu) / 1e9, "\"failed\": " + failed.get());
    }

    private static String oneByOne(DefaultMQProducer producer, double seconds) throws Exception {
        double[] took = new double[1 << 20];
        int sent = 0;
        long cpu = cpuNanos();
        long began = System.nanoTime();
        long until = began + (long) (seconds * 1e9);
        long at = began;
        while (at < until && sent < took.length) {
            producer.send(message());
            long now = System.nanoTime();
            took[sent++] = (now - at) / 1e3;
            at = now;
        }
        double cpuS = (cpuNanos() - cpu) / 1e9;
        double[] sorted = Arrays.copyOf(took, sent);
        Arrays.sort(sorted);
        String latency = "\"p50_us\": " + sorted[sent / 2] + ", \"p99_us\": " + sorted[sent * 99 / 100];
        return numbers(sent, (at - began) / 1e9, cpuS, latency);
    }

    private static String numbers(long sent, double seconds, double cpuS, String more) {
        return "{\"messages_per_s\": " + sent / seconds
            + ", \"client_cpu_us_per_message\": " + cpuS / Math.max(1, sent) * 1e6
            + ", \"messages\": " + sent + ", \"seconds\": " + seconds + ", " + more + "}";
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
            ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
