// A Java transactional producer through every path, and what each one says when the producer was fenced.
//   java -cp 'libs/*' TransactionalPaths.java BOOTSTRAP TOPIC GROUP ID
// prints one line for each step: its name, and `ok` or the exception's class (and its cause's).

import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

public class TransactionalPaths {
    interface Step {
        void run() throws Exception;
    }

    static String bootstrap;
    static String topic;
    static String group;

    static KafkaProducer<String, String> producer(String id) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("transactional.id", id);
        config.put("transaction.timeout.ms", "60000");
        config.put("max.block.ms", "20000");
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    static void step(String name, Step step) {
        String result = "ok";
        try {
            step.run();
        } catch (Exception failed) {
            Throwable seen = failed instanceof ExecutionException ? failed.getCause() : failed;
            result = seen.getClass().getSimpleName();
            if (seen.getCause() != null) {
                result += " by " + seen.getCause().getClass().getSimpleName();
            }
        }
        System.out.println(name + ": " + result);
    }

    static void send(KafkaProducer<String, String> producer, String value) throws Exception {
        producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
    }

    static Map<TopicPartition, OffsetAndMetadata> offsets(long offset) {
        return Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(offset, "by java"));
    }

    @SuppressWarnings({"removal", "deprecation"}) // a producer without a consumer has only the group's name
    static ConsumerGroupMetadata metadata() {
        return new ConsumerGroupMetadata(group);
    }

    static void goodOnes(String id) {
        try (KafkaProducer<String, String> producer = producer(id)) {
            step("init", producer::initTransactions);
            step("begin", producer::beginTransaction);
            step("send", () -> send(producer, "committed"));
            step("offsets", () -> producer.sendOffsetsToTransaction(offsets(1), metadata()));
            step("commit", producer::commitTransaction);
            step("begin", producer::beginTransaction);
            step("send", () -> send(producer, "aborted"));
            step("offsets", () -> producer.sendOffsetsToTransaction(offsets(2), metadata()));
            step("abort", producer::abortTransaction);
            step("begin an empty one", producer::beginTransaction);
            step("commit an empty one", producer::commitTransaction);
            step("begin", producer::beginTransaction);
            step("send", () -> send(producer, "committed again"));
            step("commit", producer::commitTransaction);
        }
    }

    static void fencedAt(String id, String what, boolean open) {
        KafkaProducer<String, String> old = producer(id);
        old.initTransactions();
        old.beginTransaction();
        if (open) {
            step("fenced at " + what + ", before: send", () -> send(old, "of the old one"));
        }
        try (KafkaProducer<String, String> fresh = producer(id)) {
            step("fenced at " + what + ": init of the new one", fresh::initTransactions);
            switch (what) {
                case "send" -> step("fenced at send", () -> send(old, "late"));
                case "commit" -> step("fenced at commit", old::commitTransaction);
                case "abort" -> step("fenced at abort", old::abortTransaction);
                default -> step("fenced at offsets",
                        () -> old.sendOffsetsToTransaction(offsets(9), metadata()));
            }
            step("fenced at " + what + ", then abort", old::abortTransaction);
            step("fenced at " + what + ": the new one begins", fresh::beginTransaction);
            step("fenced at " + what + ": the new one sends", () -> send(fresh, "of the new one, " + what));
            step("fenced at " + what + ": the new one commits", fresh::commitTransaction);
        }
        old.close(java.time.Duration.ZERO);
    }

    public static void main(String[] args) {
        bootstrap = args[0];
        topic = args[1];
        group = args[2];
        goodOnes(args[3]);
        for (String what : List.of("send", "offsets", "commit", "abort")) {
            fencedAt(args[3] + "-" + what, what, true);
        }
        fencedAt(args[3] + "-unsent", "send", false);
        System.exit(0);
    }
}
