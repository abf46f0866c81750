// kfake as a process: serves one broker on a given loopback port until it is told to stop.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	port := flag.Int("port", 0, "port to listen on (0: any free one)")
	dir := flag.String("dir", "", "data directory (empty: in memory)")
	sync := flag.Bool("sync", false, "flush every batch before it is acknowledged")
	topics := flag.String("topics", "", "NAME:PARTITIONS,... created at start")
	flag.Parse()

	opts := []kfake.Opt{kfake.NumBrokers(1), kfake.Ports(*port), kfake.AllowAutoTopicCreation()}
	if *dir != "" {
		opts = append(opts, kfake.DataDir(*dir))
	}
	if *sync {
		opts = append(opts, kfake.SyncWrites())
	}
	for _, topic := range strings.FieldsFunc(*topics, func(r rune) bool { return r == ',' }) {
		var name string
		var count int32
		if _, err := fmt.Sscanf(strings.Replace(topic, ":", " ", 1), "%s %d", &name, &count); err != nil {
			fmt.Fprintf(os.Stderr, "kfake: not NAME:PARTITIONS: %s\n", topic)
			os.Exit(2)
		}
		opts = append(opts, kfake.SeedTopics(count, name))
	}
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		fmt.Fprintf(os.Stderr, "kfake: %v\n", err)
		os.Exit(1)
	}
	fmt.Printf("kfake ready bootstrap=%s\n", cluster.ListenAddrs()[0])
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	cluster.Close()
}
