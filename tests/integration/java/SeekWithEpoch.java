// A Java consumer that seeks with a leader epoch, as one does that restores its position from a committed offset:
// it must check that epoch with the broker before it fetches. Run as a single source file.
//   java -cp 'libs/*' SeekWithEpoch.java BOOTSTRAP TOPIC PARTITION OFFSET EPOCH COUNT
// prints one line `offset epoch value` per record and ends when COUNT came, or with status 1 after 30 s.

import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class SeekWithEpoch {
    public static void main(String[] args) {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "none");
        TopicPartition partition = new TopicPartition(args[1], Integer.parseInt(args[2]));
        long offset = Long.parseLong(args[3]);
        int epoch = Integer.parseInt(args[4]);
        int wanted = Integer.parseInt(args[5]);
        long deadline = System.nanoTime() + Duration.ofSeconds(30).toNanos();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, new OffsetAndMetadata(offset, Optional.of(epoch), ""));
            int received = 0;
            while (received < wanted && System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println(record.offset() + " " + record.leaderEpoch().orElse(-1) + " " + record.value());
                    received++;
                }
            }
            System.exit(received >= wanted ? 0 : 1);
        }
    }
}
