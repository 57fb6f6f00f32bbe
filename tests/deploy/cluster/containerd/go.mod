// The programs of containerd, which `go install` does not make: its own go.mod has exclusions.
module penstock.test/containerd

go 1.26.0

require github.com/containerd/containerd/v2 v2.1.9

tool (
	github.com/containerd/containerd/v2/cmd/containerd
	github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2
	github.com/containerd/containerd/v2/cmd/ctr
)
