module kmirror/conformance/peers/kfake

go 1.26.0

require github.com/twmb/franz-go/pkg/kfake v0.0.0-20260515175617-8268a5d078c0

require (
	github.com/klauspost/compress v1.18.6 // indirect
	github.com/pierrec/lz4/v4 v4.1.26 // indirect
	github.com/twmb/franz-go v1.21.1 // indirect
	github.com/twmb/franz-go/pkg/kmsg v1.13.1 // indirect
	golang.org/x/crypto v0.51.0 // indirect
)
